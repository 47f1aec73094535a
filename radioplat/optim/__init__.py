"""Optimizers, schedules, parameter groups."""
