"""Detector files: one safetensors file; see :class:`~radioplat.models.weights.model_format.Format`."""

from __future__ import annotations

from pathlib import Path

from radioplat.models.detectors.base import Detector, DetectorArchitecture
from radioplat.models.weights.model_format import Format, save_files

DETECTOR_FILE = "detector.safetensors"


def _build(architecture: DetectorArchitecture, where: str) -> Detector:
    return Detector(architecture, where or "model.detector")


DETECTOR: Format[DetectorArchitecture, Detector] = Format(
    {DETECTOR_FILE: ""}, "radioplat.detector", DetectorArchitecture, _build
)
load_detector, read_detector, read_detector_architecture = DETECTOR.load, DETECTOR.read, DETECTOR.read_architecture


def save_detector(detector: Detector, folder: Path) -> None:
    """Write ``detector``, fp32, into ``folder``, which is created if missing."""
    folder.mkdir(parents=True, exist_ok=True)
    save_files(DETECTOR.files(detector.architecture, detector.state_dict()), folder)
