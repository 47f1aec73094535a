"""A detector that radioplat trained, as a teacher for bindings to outputs of its modules."""

from __future__ import annotations

import torch
from torch import nn

from radioplat.models.detectors.base import Detector
from radioplat.models.detectors.checkpoint import load_detector, read_detector, read_detector_architecture
from radioplat.models.features import Features
from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.teachers.adapters.adapter import BOTH, Adapter, NativeInput, refuse_kwargs, weights_field


class DetectorTeacher(Adapter):
    """A detector checkpoint as a teacher: the map is the coarsest of its backbone, the summary the mean of that map."""

    kind = "detector"
    structure_without_weights = False  # transformers reads tensor values while it builds
    in_fp32 = True
    needs_multiple = True

    def __init__(self, detector: Detector) -> None:
        super().__init__()
        self.detector = detector.eval()
        form = detector.architecture
        self.stride, self.class_names = detector.stride, form.class_names
        student = form.student
        self.native = NativeInput(student.mean, student.std, student.img_size, "mean of the coarsest map")
        self._plain()

    @classmethod
    def build(cls, teacher: ResolvedTeacher) -> DetectorTeacher:
        """Build the structure without weights."""
        refuse_kwargs(teacher, "a detector's checkpoint")
        where = weights_field(teacher)
        return cls(Detector(read_detector_architecture(teacher.weights or "", where), where))

    def load(self, teacher: ResolvedTeacher) -> None:
        """Load the weights."""
        self.detector = load_detector(teacher.weights or "", weights_field(teacher))
        self._plain()

    def check(self, teacher: ResolvedTeacher) -> None:
        """Read the weights and check that they fit."""
        read_detector(teacher.weights or "", weights_field(teacher))

    @property
    def target(self) -> nn.Module:
        """The detector; bindings name modules of it."""
        return self.detector

    def as_named(self, output: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
        """Return maps with channels last, and queries ``[B, Q, D]`` unchanged."""
        return output.permute(0, 2, 3, 1) if output.ndim == 4 else output

    def forward(self, images: torch.Tensor, wanted: frozenset[str] = BOTH) -> Features:
        """Return the wanted features of normalised images ``[B, 3, H, W]``."""
        maps: list[torch.Tensor] = []
        hook = self.detector.srcs[-1].register_forward_hook(lambda module, given, output: maps.append(output))
        try:
            self.detector.outputs(images)
        finally:
            hook.remove()
        spatial = maps[0].permute(0, 2, 3, 1)
        summary = spatial.mean((1, 2)) if "summary" in wanted else None
        return Features(summary, spatial if "spatial" in wanted else None)

    def _plain(self) -> None:
        """Switch off the detector's own normalisation: images are normalised already."""
        self.detector.student.leave_normalization_out()
