"""Engines: built, recorded, run; what every backend shares."""
