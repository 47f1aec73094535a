"""Operations of an image, counted by torch on the meta device; a multiplication and an addition are two.

Attention is counted as its matrix products, without the second pass over them that fused kernels make in the backward
pass: MFU counts what the model needs, not what a kernel repeats.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from typing import Any

import timm
import torch
from timm.layers import set_fused_attn
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.gpu.loop import Taught
from benchmarks.gpu.setting import Model, Setting


def forward_flop(model: Model) -> int:
    """Return the operations of a forward pass of one image."""
    built = _built(model).requires_grad_(False)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        built.forward_features(torch.empty(1, 3, model.size, model.size, device="meta"))
    return int(counter.get_total_flops())


def taught_flop(model: Model, widths: list[int]) -> int:
    """Return the operations of forward and backward of one image, of a student with a head for each of ``widths``."""
    built = _on_meta(lambda: Taught(model.arguments, widths))
    images = torch.empty(1, 3, model.size, model.size, device="meta")
    targets = [(torch.empty(1, w, device="meta"), torch.empty(1, 4, 4, w, device="meta")) for w in widths]
    with FlopCounterMode(display=False) as counter:
        built(images, targets).backward()
    return int(counter.get_total_flops())


def described(model: Model) -> Model:
    """Return the model with the width and the grid of its features."""
    built = _built(model)
    return dataclasses.replace(model, width=built.embed_dim, grid=model.size // built.patch_embed.patch_size[0])


def count(setting: Setting) -> dict[str, Any]:
    """Return GFLOP an image: of the student and its heads forward and backward, of each teacher forward.

    Args:
        setting: with teachers that are :func:`described`.
    """
    student = taught_flop(setting.student, [])
    return {
        "student": student / 1e9,
        "heads": (taught_flop(setting.student, setting.widths) - student) / 1e9,
        "teachers": {t.name: forward_flop(t) / 1e9 for t in setting.teachers},
    }


def mfu(gflop: float, images_per_s: float, peak: float | None, gpus: int) -> float | None:
    """Return the share of the peak of all GPUs; None where the peak is not known.

    Args:
        gflop: of an image.
        peak: operations a second of one GPU.
    """
    return None if peak is None else 1e9 * gflop * images_per_s / (peak * gpus)


@functools.cache
def _cached(name: str, kwargs: str) -> nn.Module:
    return _on_meta(lambda: timm.create_model(name, num_classes=0, **json.loads(kwargs)))


def _built(model: Model) -> nn.Module:
    return _cached(model.type, json.dumps(model.kwargs))


def _on_meta(build: Any) -> Any:
    set_fused_attn(False)
    try:
        with torch.device("meta"):
            return build()
    finally:
        set_fused_attn(True)
