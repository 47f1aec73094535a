"""A detector on disk: one safetensors file with the architecture in its metadata."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import save_file

from radioplat.errors import WeightsError
from radioplat.models.detector import DetectorArchitecture
from radioplat.models.detectors import AnyDetector, build_detector
from radioplat.models.weights import load_into, read_checkpoint, require_finite

DETECTOR_FILE = "detector.safetensors"
_KEY = "radioplat.detector"


def save_detector(detector: AnyDetector, folder: Path) -> None:
    """Write ``detector``, fp32, into ``folder``, which is made where there is none."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {k: (v.float() if v.is_floating_point() else v).contiguous() for k, v in detector.state_dict().items()}
    save_file(tensors, folder / DETECTOR_FILE, {_KEY: detector.architecture.to_json(), "format": "pt"})


def load_detector(path: str | Path, where: str = "") -> AnyDetector:
    """Open a detector from its folder or file.

    Returns:
        fp32, evaluation mode, on the CPU.

    Raises:
        WeightsError: it is missing, torn, holds a NaN, or is no detector of ours.
    """
    path = Path(path)
    file = path / DETECTOR_FILE if path.is_dir() else path
    content = read_checkpoint(file, where)
    if _KEY not in content.metadata:
        raise WeightsError(f"{file} does not say which detector it holds", where=where)
    try:
        architecture = DetectorArchitecture.from_json(content.metadata[_KEY])
    except (ValueError, KeyError, TypeError):
        raise WeightsError(f"{file} describes a detector that this version cannot read", where=where) from None
    detector = build_detector(architecture, where or "model.detector")
    require_finite(content.tensors, file, where)
    load_into(detector, content.tensors, file, where)
    return detector.eval()
