"""Pools of Ray actors that serve teacher features."""
