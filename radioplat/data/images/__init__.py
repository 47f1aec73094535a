"""Bytes to headers and pixels."""
