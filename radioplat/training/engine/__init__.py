"""The engines (DeepSpeed, ddp), EMA weights, BatchNorm statistics."""
