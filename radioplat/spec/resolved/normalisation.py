"""Mean and standard deviation of images, as three numbers each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from radioplat.errors import Problem
from radioplat.spec.schema.root import Spec


def normalisation_problems(mean: Sequence[float], std: Sequence[float], where: str) -> Iterator[Problem]:
    """What is wrong with ``mean`` and ``std`` of images in [0, 1]; ``where`` is their field path up to those words."""
    for name, values in (("mean", mean), ("std", std)):
        if len(values) != 3:
            yield Problem(f"three numbers are needed (R, G, B), not {len(values)}", where + name)


def student_normalisation(spec: Spec) -> tuple[tuple[float, ...], tuple[float, ...], str]:
    """Mean and std of the student's images, and their field path up to those words."""
    backbone, augmentation = spec.model.backbone, spec.dataset.augmentation
    mean, std = backbone.student_norm_mean or augmentation.mean, backbone.student_norm_std or augmentation.std
    own = backbone.student_norm_mean or backbone.student_norm_std
    return tuple(mean), tuple(std), "model.backbone.student_norm_" if own else "dataset.augmentation."
