"""Loading of a spec: YAML, overrides, conversion of TAO specs."""
