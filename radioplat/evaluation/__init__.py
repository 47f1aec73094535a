"""Evaluation of students and detectors; independent of commands."""
