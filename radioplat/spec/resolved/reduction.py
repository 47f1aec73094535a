"""Whether a run's sums are exact."""

from __future__ import annotations

from radioplat.spec.schema.train import Reduction, TrainConfig


def is_exact(train: TrainConfig) -> bool:
    """Return whether sums over micro-batches do not depend on how workers share them."""
    return train.reduction is Reduction.exact
