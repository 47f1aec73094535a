"""Sensitivity of layers to quantization."""

from __future__ import annotations

from pathlib import Path

import torch

from radioplat.compression.quantization.sensitivity import layer_changes
from radioplat.data.loading.sample_images import sample_images
from radioplat.models.vision_model import open_model
from radioplat.spec.schema.root import Spec

IMAGES = 32


def most_sensitive(spec: Spec, checkpoint: Path) -> list[str]:
    """Return the quantized layers of a checkpoint, those first that change features of training images most.

    Raises:
        DataError: no image can be decoded.
    """
    model = open_model(checkpoint)
    size = model.architecture.img_size
    images = torch.from_numpy(sample_images(spec, {size}, IMAGES, whole=model.whole_images)[size])
    changes = layer_changes(model, [images])
    return sorted(changes, key=lambda layer: -changes[layer])
