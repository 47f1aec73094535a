"""Engines: building, metadata, running; shared by all backends."""
