"""Calibration images of ``quantize``."""

from __future__ import annotations

import torch

from radioplat.data.loading.sample_images import sample_images
from radioplat.spec.checks.tasks.quantize import calibration_split
from radioplat.spec.schema.root import Spec


def calibration_images(spec: Spec, size: int, whole: bool = False) -> list[torch.Tensor]:
    """Load batches of the calibration split, else of train, without augmentation: uint8 ``[B, 3, size, size]``.

    Args:
        whole: see :func:`radioplat.data.loading.sample_images.sample_images`.

    Raises:
        DataError: no image of the split can be decoded.
    """
    count = spec.quantize.calibration_batches * spec.dataset.batch_size
    images = sample_images(spec, {size}, count, calibration_split(spec), whole)[size]
    return list(torch.from_numpy(images).split(spec.dataset.batch_size))
