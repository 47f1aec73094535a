"""The number formats that a run computes in."""

from __future__ import annotations

from dataclasses import dataclass

from radioplat.spec.resolved.reduction import is_exact
from radioplat.spec.schema.train import Precision, TrainConfig


@dataclass(frozen=True)
class Fp32Arithmetic:
    """Switches of fp32 arithmetic on GPUs, for the processes of a run.

    Attributes:
        tf32: whether matrices are multiplied as TF32; None: as torch does by itself, with convolutions as TF32.
        benchmark, deterministic: of ``train.cudnn``.
        exact: ``train.reduction: exact``, which wants deterministic kernels.
    """

    tf32: bool | None = None
    benchmark: bool = False
    deterministic: bool = False
    exact: bool = False


def fp32_arithmetic_of(train: TrainConfig) -> Fp32Arithmetic:
    """Return how the processes of a run compute fp32 on GPUs, its teachers' replicas too."""
    return Fp32Arithmetic(train.tf32, train.cudnn.benchmark, train.cudnn.deterministic, is_exact(train))


def precision_of(train: TrainConfig) -> Precision:
    """Return the precision of a run, never ``auto``.

    A start writes its choice for ``auto`` into the run's spec. Where ``auto`` is still there, no start has read the
    spec, or a version without ``auto`` has run it: fp32, which all hardware has, and which was the only default then.
    """
    return Precision.fp32 if train.precision is Precision.auto else train.precision


def uses_tf32(train: TrainConfig) -> bool:
    """Return whether matrices are multiplied as TF32 on GPUs; a start sets the field for new runs."""
    return bool(train.tf32)
