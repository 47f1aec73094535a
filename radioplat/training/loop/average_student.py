"""The student's moving average as a teacher: a frozen copy of the student with the weights of the run's EMA."""

from __future__ import annotations

import copy

import torch
from torch import nn

from radioplat.models.capture import as_features, captured
from radioplat.models.features import Features
from radioplat.models.student.student import Student
from radioplat.spec.resolved.terms import MODULE
from radioplat.training.engine.batchnorm_state import round_statistics
from radioplat.training.engine.ema import Ema


class AverageStudent:
    """Compute features of the averaged backbone in evaluation mode.

    DropPath, windows, noise and cropped position tables are therefore off.

    It needs no state in checkpoints: :meth:`update` copies the run's :class:`~radioplat.training.engine.ema.Ema` and
    the student's buffers, which checkpoints contain. It is not an ``nn.Module``, so the engine does not partition it.

    Args:
        student: the student with its starting weights, before hooks are registered on it and an engine partitions it.

    Attributes:
        ema: the run's average; set after the engine is built.
    """

    def __init__(self, student: Student) -> None:
        twin = copy.deepcopy(student)
        twin.heads, twin.classifier = nn.ModuleDict(), None
        self._student, self._twin = student, twin.requires_grad_(False).eval()
        self.ema: Ema | None = None
        self._into: dict[str, torch.Tensor] = {}  # the twin's tensors by name, from the first update on
        self._buffers: tuple[list[torch.Tensor], list[torch.Tensor]] = [], []  # the twin's, and the student's

    @torch.no_grad()
    def update(self) -> None:
        """Copy the current average, in the student's dtype, and the buffers that have none; all ranks must call it."""
        assert self.ema is not None
        if not self._into:
            self._prepare()
        if self._buffers[0]:
            torch._foreach_copy_(*self._buffers)
        self.ema.copy_into(self._into)

    def _prepare(self) -> None:
        """Give the twin the dtype of the student's weights, and look up the tensors that :meth:`update` copies."""
        dtype = next(self._student.backbone.parameters()).dtype
        if next(self._twin.backbone.parameters()).dtype is not dtype:
            for parameter in self._twin.parameters():
                parameter.data = parameter.data.to(dtype)
            if dtype is not torch.float32:
                round_statistics(self._twin, dtype)
        live, buffers = dict(self._student.named_buffers()), dict(self._twin.named_buffers())
        self._buffers = list(buffers.values()), [live[name] for name in buffers]
        self._into = dict(self._twin.named_parameters()) | buffers

    @torch.no_grad()
    def __call__(self, images: torch.Tensor, wanted: frozenset[str]) -> Features:
        """Return features of uint8 images ``[B, 3, H, W]``, in the dtype of the student's weights, without gradients.

        Args:
            wanted: any of ``summary``, ``spatial``, and outputs of modules, each as ``MODULE`` plus the module's name.
        """
        backbone = self._twin.backbone
        modules = sorted(name.removeprefix(MODULE) for name in wanted if name.startswith(MODULE))
        with captured(backbone.target, modules) as outputs:
            features = self._twin(images, frozenset({"summary", "spatial"} & wanted) or frozenset({"summary"}))
        grid = images.shape[-2] // backbone.stride, images.shape[-1] // backbone.stride
        features.named |= {MODULE + name: as_features(output, grid) for name, output in outputs.items()}
        return features
