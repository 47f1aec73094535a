"""Layers of a detector that stay float when it is quantized."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

# Modules of transformers' detectors that stay float, and box heads, whose last layer stays float.
_WHOLE = {
    "class_embed": "a classifier",
    "enc_score_head": "a classifier",
    "sampling_offsets": "sampling positions of attention",
}
_BOXES = ("bbox_embed", "enc_bbox_head")


def float_layers(detr: nn.Module, prefix: str) -> Iterator[tuple[str, str]]:
    """Yield names of layers and modules of ``detr`` that stay float, with ``prefix``, and the reason."""
    for name, _ in detr.named_modules(prefix=prefix):
        parts = name.split(".")
        reason = next((_WHOLE[part] for part in parts if part in _WHOLE), None)
        if reason is not None:
            yield name, reason
        boxes, _, number = name.rpartition(".layers.")
        if number.isdigit() and any(part in _BOXES for part in parts):
            if int(number) == len(detr.get_submodule(f"{boxes}.layers".removeprefix(f"{prefix}."))) - 1:
                yield name, "a regression"
        if name.endswith("query_pos_head.layers.0"):
            yield name, "reads boxes"
