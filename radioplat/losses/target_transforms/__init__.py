"""Target normalization of teachers' features: standardization, PHI-S, whitening."""
