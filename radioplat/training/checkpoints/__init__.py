"""Checkpoints: saving, restoring, mirroring to a second location, retention."""
