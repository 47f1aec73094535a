"""The student's moving average as a teacher: a frozen copy of the student, filled from the run's EMA."""

from __future__ import annotations

import copy

import torch
from torch import nn

from radioplat.models.capture import as_features, captured
from radioplat.models.features import Features
from radioplat.models.student.student import Student
from radioplat.spec.resolved.terms import MODULE
from radioplat.training.engine.deepspeed_engine import round_statistics
from radioplat.training.engine.ema import Ema


class AverageStudent:
    """Features of the averaged backbone, in evaluation: without DropPath, windows, noise or cropped position tables.

    It has no state of its own: :meth:`update` fills it from the run's :class:`~radioplat.training.engine.ema.Ema` and
    the student's buffers, which are in checkpoints. It is not an ``nn.Module``, so no engine partitions it.

    Args:
        student: with its starting weights, before hooks are set on it and an engine has partitioned it.

    Attributes:
        ema: the run's average; set once the engine is built.
    """

    def __init__(self, student: Student) -> None:
        twin = copy.deepcopy(student)
        twin.heads, twin.classifier = nn.ModuleDict(), None
        self._student, self._twin = student, twin.requires_grad_(False).eval()
        self.ema: Ema | None = None

    @torch.no_grad()
    def update(self) -> None:
        """Copy the present average, in the student's dtype, and the buffers without one; every rank must call this."""
        assert self.ema is not None
        dtype = next(self._student.backbone.parameters()).dtype
        if next(self._twin.backbone.parameters()).dtype is not dtype:
            for parameter in self._twin.parameters():
                parameter.data = parameter.data.to(dtype)
            if dtype is not torch.float32:
                round_statistics(self._twin, dtype)
        live = dict(self._student.named_buffers())
        buffers = dict(self._twin.named_buffers())
        for name, buffer in buffers.items():
            buffer.copy_(live[name])
        self.ema.copy_into(dict(self._twin.named_parameters()) | buffers)

    @torch.no_grad()
    def __call__(self, images: torch.Tensor, wanted: frozenset[str]) -> Features:
        """Features of uint8 images ``[B, 3, H, W]``, in the dtype of the student's weights, without a gradient.

        Args:
            wanted: any of ``summary`` and ``spatial``, and outputs of modules, as ``MODULE`` and the module's name.
        """
        backbone = self._twin.backbone
        modules = sorted(name.removeprefix(MODULE) for name in wanted if name.startswith(MODULE))
        with captured(backbone.target, modules) as outputs:
            features = self._twin(images, frozenset({"summary", "spatial"} & wanted) or frozenset({"summary"}))
        grid = images.shape[-2] // backbone.stride, images.shape[-1] // backbone.stride
        features.named |= {MODULE + name: as_features(output, grid) for name, output in outputs.items()}
        return features
