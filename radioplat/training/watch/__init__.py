"""Phases and the watchdog."""
