"""The ZeRO stage that a run is in, and the size of its buckets."""

from __future__ import annotations

from radioplat.spec.schema.train import Precision, TrainConfig

BUCKET = 500_000_000  # DeepSpeed's default: gradients, as numbers, that travel together at most


def zero_stage(train: TrainConfig) -> int:
    """The stage that a run is in: 16 bits need one at least."""
    return max(1, train.zero_stage) if train.precision is not Precision.fp32 else train.zero_stage
