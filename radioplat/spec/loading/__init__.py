"""YAML, overrides, TAO specs."""
