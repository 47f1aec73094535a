"""The DeepSpeed engine, EMA weights, BatchNorm statistics."""
