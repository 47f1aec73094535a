"""The change of the features if one layer alone is quantized."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from radioplat.models.quantized.quantizer import Quantizer, in_float, quantizers


@torch.no_grad()
def layer_changes(model: Any, batches: Sequence[torch.Tensor]) -> dict[str, float]:
    """Return the relative squared change of a model's features by quantized layer, in the model's order.

    The features are those of :meth:`~radioplat.models.vision_model.VisionModel.feature_probe`; the changes of each kind
    are added. Quantizers of residual branches are left out.

    Args:
        model: quantized and calibrated.
        batches: uint8 ``[B, 3, H, W]``.
    """
    parts = model.architecture.quantizations.items()
    layers = {f"{prefix}{name}" for prefix, how in parts for name in how.layers}
    of_layer: dict[str, list[Quantizer]] = {}
    for name, quantizer in quantizers(model).items():
        if (layer := name.rpartition(".")[0]) in layers:
            of_layer.setdefault(layer, []).append(quantizer)
    with in_float(model):
        plain = [model.feature_probe(images) for images in batches]
        return {layer: _change(model, batches, plain, own) for layer, own in of_layer.items()}


def _change(model: Any, batches: Sequence[torch.Tensor], plain: list[Any], own: list[Quantizer]) -> float:
    """Return the change by the quantizers ``own`` alone."""
    for quantizer in own:
        quantizer.enabled = True
    squares: dict[str, tuple[float, float]] = {}
    for images, before in zip(batches, plain, strict=True):
        for (kind, a), (_, b) in zip(model.feature_probe(images), before, strict=True):
            difference, size = squares.get(kind, (0.0, 0.0))
            squares[kind] = difference + float((a - b).square().sum()), size + float(b.square().sum())
    for quantizer in own:
        quantizer.enabled = False
    return sum(difference / size for difference, size in squares.values() if size)
