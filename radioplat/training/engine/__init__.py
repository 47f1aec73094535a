"""The DeepSpeed engine, EMA, BatchNorm state."""
