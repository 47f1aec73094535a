"""Detector files: one safetensors file with the architecture in its metadata."""

from __future__ import annotations

from pathlib import Path

import torch

from radioplat import __version__
from radioplat.errors import WeightsError
from radioplat.models.detectors.base import Detector, DetectorArchitecture
from radioplat.models.student.checkpoint import (
    EMA_FILE,
    VERSION_KEY,
    chosen_average,
    is_model,
    save_files,
    unknown_form,
)
from radioplat.models.weights.manifest import require_unchanged
from radioplat.models.weights.read import load_into, read_checkpoint, require_finite
from radioplat.models.weights.stored_numbers import require_plausible

DETECTOR_FILE = "detector.safetensors"
DETECTOR_KEY = "radioplat.detector"


def save_detector(detector: Detector, folder: Path) -> None:
    """Write ``detector``, fp32, into ``folder``, which is created if missing."""
    folder.mkdir(parents=True, exist_ok=True)
    save_files(detector_files(detector.architecture, detector.state_dict()), folder)


def detector_files(
    architecture: DetectorArchitecture, tensors: dict[str, torch.Tensor]
) -> dict[str, tuple[dict[str, torch.Tensor], dict[str, str]]]:
    """Return content of a checkpoint's detector file, by its name: fp32 tensors, and the metadata."""
    held = {k: v.float() if v.is_floating_point() else v for k, v in tensors.items()}
    metadata = {DETECTOR_KEY: architecture.to_json(), VERSION_KEY: __version__, "format": "pt"}
    return {DETECTOR_FILE: (held, metadata)}


def is_detector(path: str | Path) -> bool:
    """Return whether ``path`` is a folder or file that :func:`load_detector` can open."""
    return is_model(path, DETECTOR_FILE, DETECTOR_KEY)


def read_detector(
    path: str | Path, where: str = "", ema: bool | None = None
) -> tuple[DetectorArchitecture, dict[str, torch.Tensor]]:
    """Read architecture and tensors of a detector; ``ema`` as :func:`radioplat.models.student.checkpoint.load_student`.

    Raises:
        WeightsError: it is missing, torn, differs from its manifest, contains a NaN, is no detector of radioplat, or
            lacks the requested averages.
    """
    path = Path(path)
    file = path / DETECTOR_FILE if path.is_dir() else path
    content = read_checkpoint(file, where)
    architecture = _architecture(content.metadata, file, where)
    require_unchanged(path, (DETECTOR_FILE, *(() if ema is False else (EMA_FILE,))), where)
    tensors = {**content.tensors, **chosen_average(path, ema, where)}
    require_finite(tensors, file, where)
    return architecture, tensors


def read_detector_architecture(path: str | Path, where: str = "") -> DetectorArchitecture:
    """Read the architecture that a detector was saved with; no tensor is read.

    Raises:
        WeightsError: as :func:`read_detector`.
    """
    path = Path(path)
    file = path / DETECTOR_FILE if path.is_dir() else path
    return _architecture(read_checkpoint(file, where, shapes_only=True).metadata, file, where)


def load_detector(path: str | Path, where: str = "", ema: bool | None = None) -> Detector:
    """Open a detector from its folder or file.

    Args:
        ema: as :func:`radioplat.models.student.checkpoint.load_student`.

    Returns:
        The detector in fp32 and evaluation mode, on the CPU.

    Raises:
        WeightsError: as :func:`read_detector`.
    """
    architecture, tensors = read_detector(path, where, ema)
    detector = Detector(architecture, where or "model.detector")
    load_into(detector, tensors, Path(path), where)
    return detector.eval()


def _architecture(metadata: dict[str, str], file: Path, where: str) -> DetectorArchitecture:
    if DETECTOR_KEY not in metadata:
        raise WeightsError(f"{file} does not say which detector it holds", where=where)
    require_plausible(metadata[DETECTOR_KEY], file, where)
    try:
        return DetectorArchitecture.from_json(metadata[DETECTOR_KEY])
    except (ValueError, KeyError, TypeError, AttributeError):
        raise unknown_form(file, metadata, DETECTOR_KEY, DetectorArchitecture, where) from None
