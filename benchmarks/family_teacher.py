"""A teacher with ImageNet's weights that counts its forwards in a file, in whatever process it computes.

A line is ``NAME ROWS PROCESS IMAGES``, the last the CRC-32 of the images that it saw.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import timm
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from radioplat.models.features import Features
from radioplat.quickstart.weights import MEAN, STD, teacher_weights

COUNTS = "FAMILY_COUNTS"  # environment variable: the file


class Counted(nn.Module):
    """A timm CNN: pooled features and the last map; each forward appends a line to the file that ``COUNTS`` names."""

    stride = 32
    mean, std, native_size = MEAN, STD, 224

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.net = timm.create_model(name, num_classes=0)
        self.net.conv_stem.register_forward_hook(self._count)

    def _count(self, module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        path = os.environ.get(COUNTS)
        if path and not inputs[0].is_meta:
            images = zlib.crc32(inputs[0].detach().cpu().contiguous().view(torch.uint8).numpy())
            file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(file, f"{self.name} {len(inputs[0])} {os.getpid()} {images:08x}\n".encode())
            os.close(file)

    def forward(self, images: torch.Tensor, wanted: frozenset[str]) -> Features:
        """Return the wanted ones of summary ``[B, D]`` and spatial ``[B, h, w, D]``."""
        raw = self.net.forward_features(images)
        summary = self.net.forward_head(raw, pre_logits=True) if "summary" in wanted else None
        return Features(summary, raw.permute(0, 2, 3, 1) if "spatial" in wanted else None)


def weights(name: str, folder: Path) -> Path:
    """Write ImageNet's weights under this class's names; return the file."""
    path = folder / f"{name}_counted.safetensors"
    if not path.exists():
        tensors = load_file(teacher_weights(name, folder))
        save_file({f"net.{key}": value for key, value in tensors.items() if "classifier" not in key}, path)
    return path
