"""Which layers of a quantized student or detector lose most by being quantized."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from radioplat.compression.quantization.detector import BACKBONE, positions
from radioplat.data.loading.sample_images import sample_images
from radioplat.models.detectors.base import Detector, DetectorArchitecture
from radioplat.models.quantized.quantizer import Quantizer, in_float, quantizers
from radioplat.models.student.student import Student
from radioplat.spec.schema.root import Spec
from radioplat.tasks.quantize.post_training import load_quantizable

IMAGES = 32
WANTED = frozenset({"summary", "spatial"})


@torch.no_grad()
def most_sensitive(spec: Spec, checkpoint: Path) -> list[str]:
    """The quantized layers of a checkpoint, the one whose quantizers alone change what is said most first.

    Measured on training images: the squared changes of summary and map, of a detector those of the backbone's maps and
    of what queries are chosen from, each over its own squares.

    Raises:
        DataError: there is no image that can be decoded.
    """
    model = load_quantizable(checkpoint)
    detects = isinstance(model, Detector)
    size = (model.student if isinstance(model, Detector) else model).architecture.img_size
    images = torch.from_numpy(sample_images(spec, {size}, IMAGES, whole=detects)[size])
    by_layer: dict[str, list[Quantizer]] = {}
    for name, quantizer in quantizers(model).items():
        by_layer.setdefault(name.rpartition(".")[0], []).append(quantizer)
    with in_float(model):
        plain = _said(model, images)
        lost = {}
        for layer, own in by_layer.items():
            for quantizer in own:
                quantizer.enabled = True
            said = _said(model, images)
            lost[layer] = sum(
                float((a - b).square().sum() / b.square().sum()) for a, b in zip(said, plain, strict=True)
            )
            for quantizer in own:
                quantizer.enabled = False
    layers = _layers(model)
    return sorted((layer for layer in lost if layer in layers), key=lambda layer: -lost[layer])


def _layers(model: Student | Detector) -> set[str]:
    """Names of quantized layers; residual branches are none."""
    form = model.architecture
    assert form.quantized is not None
    own = set(form.quantized.layers)
    if isinstance(form, DetectorArchitecture) and form.student.quantized is not None:
        own |= {f"{BACKBONE}{name}" for name in form.student.quantized.layers}
    return own


def _said(model: Student | Detector, images: torch.Tensor) -> Sequence[torch.Tensor]:
    if isinstance(model, Detector):
        return positions(model, images)
    features = model(images, WANTED)
    assert features.summary is not None and features.spatial is not None
    return features.summary, features.spatial
