"""Mean and standard deviation of the student's images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from radioplat.errors import Problem
from radioplat.spec.schema.root import Spec


def normalisation_problems(mean: Sequence[float], std: Sequence[float], where: str) -> Iterator[Problem]:
    """Yield problems of ``mean`` and ``std``.

    Args:
        where: their field path without the last ``mean`` or ``std``.
    """
    for name, values in (("mean", mean), ("std", std)):
        if len(values) != 3:
            yield Problem(f"three numbers are needed (R, G, B), not {len(values)}", where + name)


def student_normalisation(spec: Spec) -> tuple[tuple[float, ...], tuple[float, ...], str]:
    """Return mean, std (of images in [0, 1]) and their field path without the last ``mean`` or ``std``."""
    backbone, augmentation = spec.model.backbone, spec.dataset.augmentation
    mean, std = backbone.student_norm_mean or augmentation.mean, backbone.student_norm_std or augmentation.std
    own = backbone.student_norm_mean or backbone.student_norm_std
    return tuple(mean), tuple(std), "model.backbone.student_norm_" if own else "dataset.augmentation."
