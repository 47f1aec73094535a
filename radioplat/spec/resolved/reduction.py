"""Whether a run's sums are exact."""

from __future__ import annotations

from radioplat.spec.schema.train import Reduction, TrainConfig

# Of a step, over all workers, whose gradients can be added exactly: `training/engine/exact_gradients.py` has 52 bits
# for a sum, of which it wants 26 for the smallest gradients beside the largest, and 11 for growth and rounding.
MOST_MICRO_BATCHES = 2**15


def is_exact(train: TrainConfig) -> bool:
    """Return whether sums over micro-batches do not depend on how workers share them."""
    return train.reduction is Reduction.exact
