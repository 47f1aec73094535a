"""Preemption notices of cloud machines, and draining of their Ray nodes."""
