"""The spec: schema, loading, checks. Opens no data file and builds no model."""
