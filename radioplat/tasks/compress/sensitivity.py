"""Sensitivity of layers to quantization."""

from __future__ import annotations

from pathlib import Path

import torch

from radioplat.data.loading.sample_images import sample_images
from radioplat.models.quantized.quantizer import Quantizer, in_float, quantizers
from radioplat.models.vision_model import open_model
from radioplat.spec.schema.root import Spec

IMAGES = 32


@torch.no_grad()
def most_sensitive(spec: Spec, checkpoint: Path) -> list[str]:
    """Return the quantized layers of a checkpoint, most sensitive first.

    The sensitivity of a layer is the relative squared change of the features (:meth:`VisionModel.feature_probe`) on
    training images if it is the only quantized layer.

    Raises:
        DataError: no image can be decoded.
    """
    model = open_model(checkpoint)
    size = model.architecture.img_size
    images = torch.from_numpy(sample_images(spec, {size}, IMAGES, whole=model.whole_images)[size])
    by_layer: dict[str, list[Quantizer]] = {}
    for name, quantizer in quantizers(model).items():
        by_layer.setdefault(name.rpartition(".")[0], []).append(quantizer)
    with in_float(model):
        plain = model.feature_probe(images)
        changes = {}
        for layer, own in by_layer.items():
            for quantizer in own:
                quantizer.enabled = True
            changed = model.feature_probe(images)
            changes[layer] = sum(
                float((a - b).square().sum() / b.square().sum()) for (_, a), (_, b) in zip(changed, plain, strict=True)
            )
            for quantizer in own:
                quantizer.enabled = False
    parts = model.architecture.quantizations.items()
    layers = {f"{prefix}{name}" for prefix, how in parts for name in how.layers}  # without residual branches
    return sorted((layer for layer in changes if layer in layers), key=lambda layer: -changes[layer])
