"""The base class of frozen teachers, and their description without weights."""
