"""The number formats that a run computes in."""

from __future__ import annotations

from radioplat.spec.schema.train import Precision, TrainConfig


def precision_of(train: TrainConfig) -> Precision:
    """Return the precision of a run, never ``auto``.

    A start writes its choice for ``auto`` into the run's spec. Where ``auto`` is still there, no start has read the
    spec, or a version without ``auto`` has run it: fp32, which all hardware has, and which was the only default then.
    """
    return Precision.fp32 if train.precision is Precision.auto else train.precision


def uses_tf32(train: TrainConfig) -> bool:
    """Return whether matrices are multiplied as TF32 on GPUs; a start sets the field for new runs."""
    return bool(train.tf32)
