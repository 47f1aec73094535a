"""Checks of data, student, optimizer and run length."""
