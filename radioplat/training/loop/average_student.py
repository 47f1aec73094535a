"""The student's moving average as something that can be asked: a copy of its backbone that nothing trains."""

from __future__ import annotations

import copy

import torch
from torch import nn

from radioplat.models.capture import as_features, captured
from radioplat.models.features import Features
from radioplat.models.student.student import Student
from radioplat.spec.resolved.teacher import MODULE
from radioplat.training.engine.deepspeed_engine import round_statistics
from radioplat.training.engine.ema import Ema


class AverageStudent:
    """What the averaged backbone says of images, in evaluation: without DropPath, windows, noise, cropped positions.

    No part of it is state: :meth:`follow` makes all of it from the run's :class:`~radioplat.training.engine.ema.Ema`
    and the student's buffers, which are in checkpoints. It is no ``nn.Module``, so that no engine cuts it up.

    Args:
        student: with its starting weights, before hooks are set on it and an engine has cut it up.
    """

    def __init__(self, student: Student) -> None:
        twin = copy.deepcopy(student)
        twin.heads, twin.classifier = nn.ModuleDict(), None
        self._twin = twin.requires_grad_(False).eval()

    @torch.no_grad()
    def follow(self, ema: Ema, student: Student) -> None:
        """Become the average as it stands now; every rank must call this.

        Args:
            student: whose average it is: gives the dtype, and buffers that have no average.
        """
        dtype = next(student.backbone.parameters()).dtype
        if next(self._twin.backbone.parameters()).dtype is not dtype:
            for parameter in self._twin.parameters():
                parameter.data = parameter.data.to(dtype)
            if dtype is not torch.float32:
                round_statistics(self._twin, dtype)
        live = dict(student.named_buffers())
        buffers = dict(self._twin.named_buffers())
        for name, buffer in buffers.items():
            buffer.copy_(live[name])
        ema.copy_into(dict(self._twin.named_parameters()) | buffers)

    @torch.no_grad()
    def __call__(self, images: torch.Tensor, wanted: frozenset[str]) -> Features:
        """uint8 ``[B, 3, H, W]`` to what is ``wanted``: summary, spatial, and modules by ``MODULE`` and their name.

        In the dtype of the student's weights; without a gradient.
        """
        backbone = self._twin.backbone
        modules = sorted(name.removeprefix(MODULE) for name in wanted if name.startswith(MODULE))
        with captured(backbone.target, modules) as outputs:
            features = self._twin(images, frozenset({"summary", "spatial"} & wanted) or frozenset({"summary"}))
        grid = images.shape[-2] // backbone.stride, images.shape[-1] // backbone.stride
        features.named |= {MODULE + name: as_features(output, grid) for name, output in outputs.items()}
        return features
