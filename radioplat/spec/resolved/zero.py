"""ZeRO stage of a run, and the size of its gradient buckets."""

from __future__ import annotations

from radioplat.spec.resolved.precision import precision_of
from radioplat.spec.schema.train import EngineName, Precision, TrainConfig

# Gradient elements that ranks exchange in one message, 100 MB in fp32: few enough that the exchange begins early in the
# backward pass, and enough to use the whole bandwidth.
BUCKET = 25_000_000


def zero_stage(train: TrainConfig) -> int:
    """Return the effective ZeRO stage: at least 1 with fp16 and bf16."""
    return max(1, train.zero_stage) if precision_of(train) is not Precision.fp32 else train.zero_stage


def sharding(train: TrainConfig) -> str:
    """Return a name for what is sharded, ``ZeRO-<stage>``, or ``DDP``, which shards nothing."""
    return "DDP" if train.engine is EngineName.ddp else f"ZeRO-{zero_stage(train)}"


def waits(train: TrainConfig) -> bool:
    """Return whether each micro-batch has a collective, so that every worker needs equally many of them."""
    return bool(train.hooks) or (train.engine is not EngineName.ddp and zero_stage(train) >= 2)
