"""Checks before a start, in steps: ``plan`` prints their results, and a run with problems is refused."""
