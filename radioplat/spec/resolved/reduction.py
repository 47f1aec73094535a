"""Whether a run's sums are exact, and the threads in which its workers compute."""

from __future__ import annotations

from radioplat.spec.schema.train import Reduction, TrainConfig


def is_exact(train: TrainConfig) -> bool:
    """Return whether sums over micro-batches do not depend on the number of workers."""
    return train.reduction is Reduction.exact


def fixed_threads(train: TrainConfig) -> int | None:
    """Return the number of threads in which a worker computes on a CPU; None: as many as the machine leaves it."""
    return train.threads or (1 if is_exact(train) else None)
