"""Dataclasses of the spec, one file per YAML section."""
