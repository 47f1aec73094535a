"""Which class a detector of the spec is."""

from __future__ import annotations

import importlib

from radioplat.errors import SpecError
from radioplat.models.detectors.base import Detector, DetectorArchitecture

# kind -> module and class; imported when a spec or a file names one.
DETECTORS = {
    "rtdetr": ("base", "Detector"),
    "rtdetr_v2": ("base", "Detector"),
    "dino": ("base", "Detector"),
}


AnyDetector = Detector  # what a class of another kind would derive from


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
