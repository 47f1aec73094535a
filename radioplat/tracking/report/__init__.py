"""The HTML page and its curves."""
