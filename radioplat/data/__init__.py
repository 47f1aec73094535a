"""Data: shard index, sample order, decoding, augmented views, micro-batches. Does not import torch."""
