"""Notices that a machine is to go, and how it is drained."""
