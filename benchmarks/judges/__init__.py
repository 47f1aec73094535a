"""Judges of issues: programs that import nothing of radioplat."""
