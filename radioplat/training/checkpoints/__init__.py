"""Saving, restoring, the second home, retention."""
