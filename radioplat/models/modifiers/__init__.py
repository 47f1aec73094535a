"""In-place changes of a built backbone: DAMP noise, BatchNorm folding, low-rank layers, sparsity, spectral norm."""
