"""Which class a detector of the spec is, and what all of them have in common."""

from __future__ import annotations

import importlib
from typing import Protocol

import torch

from radioplat.errors import SpecError
from radioplat.models.detectors.base import Detector, DetectorArchitecture, Found, Outputs
from radioplat.models.student.student import Student

# kind -> module and class; imported when a spec or a file names one.
DETECTORS = {
    "rtdetr": ("base", "Detector"),
    "rtdetr_v2": ("base", "Detector"),
    "dino": ("base", "Detector"),
}


class AnyDetector(Protocol):
    """A module that finds objects. What bindings compare are outputs of its submodules; those of every detector are
    ``srcs.0``, ``srcs.1``, ... (the backbone's maps, ``[B, C, h, w]``), ``memory.0``, ... (the encoder's), ``queries``
    ``[B, Q, D]``, ``pred_logits`` ``[B, Q, C]`` and ``pred_boxes`` ``[B, Q, 4]`` of the last layer.

    Attributes:
        architecture: has ``to_json``, ``from_json``, ``student``, ``num_classes`` and ``kind``.
        student: the backbone, a student without heads.
        stride: both sides of an image must be multiples of it, pixels.
    """

    architecture: DetectorArchitecture
    student: Student
    stride: int

    def outputs(self, images: torch.Tensor, targets: list[dict[str, torch.Tensor]] | None = None) -> Outputs:
        """See :class:`Outputs`; ``targets`` as :meth:`radioplat.models.detectors.base.Detector.forward`."""
        ...

    def detect(self, images: torch.Tensor, most: int | None = None) -> list[Found]:
        """What each image shows, in its pixels."""
        ...


def build_detector(architecture: DetectorArchitecture, where: str = "model.detector") -> Detector:
    """An untrained detector.

    Raises:
        SpecError: there is no such kind, or it cannot be built so.
    """
    if architecture.kind not in DETECTORS:
        hint = f"One of {', '.join(DETECTORS)}."
        raise SpecError(f"no detector is called {architecture.kind!r}", where=f"{where}.kind", hint=hint)
    module, name = DETECTORS[architecture.kind]
    return getattr(importlib.import_module(f"radioplat.models.detectors.{module}"), name)(architecture, where)
