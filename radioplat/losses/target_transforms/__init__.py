"""Transforms of teachers' features: standardization, PHI-S, whitening."""
