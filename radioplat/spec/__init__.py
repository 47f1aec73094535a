"""What the user asked for: dataclasses, YAML and overrides, validation."""
