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


IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
Normalisation = tuple[tuple[float, ...], tuple[float, ...]]  # mean and std of images in [0, 1]


def student_normalisation(spec: Spec, of_weights: Normalisation | None = None) -> tuple[Normalisation, str]:
    """Return mean and std of the student's images, and their field path without the last ``mean`` or ``std``.

    Args:
        of_weights: with which the student's pretrained weights were trained; used if the spec sets none.
    """
    backbone, augmentation = spec.model.backbone, spec.dataset.augmentation
    mean, std = of_weights or (IMAGENET_MEAN, IMAGENET_STD)
    mean = tuple(backbone.student_norm_mean or augmentation.mean or mean)
    std = tuple(backbone.student_norm_std or augmentation.std or std)
    own = backbone.student_norm_mean or backbone.student_norm_std
    return (mean, std), "model.backbone.student_norm_" if own else "dataset.augmentation."


def sets_normalisation(spec: Spec) -> bool:
    """Return True if the spec sets mean or std of the student's images."""
    backbone, augmentation = spec.model.backbone, spec.dataset.augmentation
    return any((backbone.student_norm_mean, backbone.student_norm_std, augmentation.mean, augmentation.std))
