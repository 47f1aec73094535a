"""Which layers of a quantized student or detector lose most by being quantized."""

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
    """The quantized layers of a checkpoint, the one whose quantizers alone change what is said most first.

    Measured on training images: the squared changes of summary and map, of a detector those of the backbone's maps and
    of what queries are chosen from, each over its own squares.

    Raises:
        DataError: there is no image that can be decoded.
    """
    model = open_model(checkpoint)
    size = model.img_size
    images = torch.from_numpy(sample_images(spec, {size}, IMAGES, whole=model.whole_images)[size])
    by_layer: dict[str, list[Quantizer]] = {}
    for name, quantizer in quantizers(model).items():
        by_layer.setdefault(name.rpartition(".")[0], []).append(quantizer)
    with in_float(model):
        plain = model.feature_probe(images)
        lost = {}
        for layer, own in by_layer.items():
            for quantizer in own:
                quantizer.enabled = True
            changed = model.feature_probe(images)
            lost[layer] = sum(
                float((a - b).square().sum() / b.square().sum()) for (_, a), (_, b) in zip(changed, plain, strict=True)
            )
            for quantizer in own:
                quantizer.enabled = False
    parts = model.architecture.quantizations.items()
    layers = {f"{prefix}{name}" for prefix, how in parts for name in how.layers}  # residual branches are none
    return sorted((layer for layer in lost if layer in layers), key=lambda layer: -lost[layer])
