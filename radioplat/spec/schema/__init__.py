"""Dataclasses, one file a YAML section."""
