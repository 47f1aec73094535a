"""The ZeRO stage of a run, and the size of its gradient buckets."""

from __future__ import annotations

from radioplat.spec.resolved.precision import precision_of
from radioplat.spec.schema.train import Precision, TrainConfig

BUCKET = 500_000_000  # DeepSpeed's default: maximum number of gradient elements per reduction


def zero_stage(train: TrainConfig) -> int:
    """Return the effective ZeRO stage: at least 1 with fp16 and bf16."""
    return max(1, train.zero_stage) if precision_of(train) is not Precision.fp32 else train.zero_stage
