"""Pools of Ray actors that answer requests for features."""
