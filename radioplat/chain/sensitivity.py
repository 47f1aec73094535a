"""Which layers of a quantized student lose most by being quantized."""

from __future__ import annotations

from pathlib import Path

import torch

from radioplat.data.sample_images import sample_images
from radioplat.models.checkpoint import load_student
from radioplat.models.quantizer import Quantizer, in_float, quantizers
from radioplat.models.student import Student
from radioplat.spec.root import Spec

IMAGES = 32
WANTED = frozenset({"summary", "spatial"})


@torch.no_grad()
def most_sensitive(spec: Spec, checkpoint: Path) -> list[str]:
    """The quantized layers of a checkpoint, the one whose quantizers alone change the features most first.

    Measured on training images: the squared changes of summary and map, each over its own squares.

    Raises:
        DataError: there is no image that can be decoded.
    """
    student = load_student(checkpoint)
    size = student.architecture.img_size
    images = torch.from_numpy(sample_images(spec, {size}, IMAGES)[size])
    by_layer: dict[str, list[Quantizer]] = {}
    for name, quantizer in quantizers(student).items():
        by_layer.setdefault(name.rpartition(".")[0], []).append(quantizer)
    with in_float(student):
        plain = _said(student, images)
        lost = {}
        for layer, own in by_layer.items():
            for quantizer in own:
                quantizer.enabled = True
            said = _said(student, images)
            lost[layer] = sum(
                float((a - b).square().sum() / b.square().sum()) for a, b in zip(said, plain, strict=True)
            )
            for quantizer in own:
                quantizer.enabled = False
    how = student.architecture.quantized
    assert how is not None
    return sorted((layer for layer in lost if layer in how.layers), key=lambda layer: -lost[layer])


def _said(student: Student, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    features = student(images, WANTED)
    assert features.summary is not None and features.spatial is not None
    return features.summary, features.spatial
