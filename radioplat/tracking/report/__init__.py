"""The HTML report and its curves."""
