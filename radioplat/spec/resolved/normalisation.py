"""Mean and standard deviation of the student's images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from radioplat.errors import Problem
from radioplat.spec.schema.root import Spec

Normalisation = tuple[tuple[float, ...], tuple[float, ...]]  # mean and std of images in [0, 1]
IMAGENET_MEAN, IMAGENET_STD = IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def normalisation_problems(mean: Sequence[float], std: Sequence[float], where: str) -> Iterator[Problem]:
    """Yield problems of ``mean`` and ``std``.

    Args:
        where: their field path without the last ``mean`` or ``std``.
    """
    for name, values in (("mean", mean), ("std", std)):
        if len(values) != 3:
            yield Problem(f"three numbers are needed (R, G, B), not {len(values)}", where + name)


def student_normalisation(spec: Spec) -> tuple[Normalisation, str]:
    """Return mean and std of the student's images, and their field path without the last ``mean`` or ``std``."""
    backbone, augmentation = spec.model.backbone, spec.dataset.augmentation
    mean = tuple(backbone.student_norm_mean or augmentation.mean or IMAGENET_MEAN)
    std = tuple(backbone.student_norm_std or augmentation.std or IMAGENET_STD)
    own = backbone.student_norm_mean or backbone.student_norm_std
    return (mean, std), "model.backbone.student_norm_" if own else "dataset.augmentation."


def sets_normalisation(spec: Spec) -> bool:
    """Return True if the spec sets mean or std of the student's images."""
    backbone, augmentation = spec.model.backbone, spec.dataset.augmentation
    return any((backbone.student_norm_mean, backbone.student_norm_std, augmentation.mean, augmentation.std))
