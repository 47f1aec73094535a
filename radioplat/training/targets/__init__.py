"""Target normalization during a run."""
