"""Runs that are killed, starved and lied to from outside, and what they make of it; see ``__main__``."""
