"""The detector of a run: what it is, what it starts from, and what cannot work, before a worker starts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from radioplat.errors import SpecError, WeightsError
from radioplat.models.detector import DetectorArchitecture
from radioplat.models.detector_file import is_detector, read_detector, read_detector_architecture
from radioplat.models.detectors import AnyDetector, build_detector
from radioplat.models.start import MODEL_PATH, start_student
from radioplat.models.student import StudentArchitecture
from radioplat.spec.model import DetectorConfig
from radioplat.spec.root import Spec
from radioplat.spec.sizes import student_sizes


def detector_architecture(spec: Spec, backbone: StudentArchitecture, classes: Sequence[str]) -> DetectorArchitecture:
    """What ``model.detector`` asks for on ``backbone``; left at its default, what pretrained weights say.

    Raises:
        SpecError: it cannot be built, or does not take images of the run's sizes.
    """
    config, path = spec.model.detector, spec.train.pretrained_model_path
    if config == DetectorConfig() and path and is_detector(path):
        known = read_detector_architecture(path, MODEL_PATH)
        config = DetectorConfig(known.kind, known.options)
    architecture = DetectorArchitecture(backbone, len(classes), config.kind, dict(config.options), tuple(classes))
    detector = build_detector(architecture)
    for size in dict.fromkeys((spec.dataset.img_size, *(s for s, _ in student_sizes(spec)))):
        where = "dataset.img_size" if size == spec.dataset.img_size else "dataset.augmentation.multi_scales"
        if size % detector.stride:
            nearest = max(1, round(size / detector.stride)) * detector.stride
            message = f"{size} is not a multiple of the detector's stride {detector.stride}"
            raise SpecError(message, where=where, hint=f"Take {nearest}.")
        with torch.no_grad():
            detector.eval().outputs(torch.zeros(1, 3, size, size, dtype=torch.uint8))  # more queries than positions
    return architecture


def start_detector(spec: Spec, architecture: DetectorArchitecture) -> AnyDetector:
    """A detector with its starting weights: seeded by ``train.seed``, then what the spec names as pretrained.

    A pretrained detector gives every tensor of the same name and shape: one of other classes all but those that score
    them.

    Raises:
        WeightsError: pretrained weights cannot be read, or nothing in them fits.
    """
    student = start_student(spec, architecture.student)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.train.seed)
        detector = build_detector(architecture)
    detector.student.load_state_dict(student.fold().state_dict())
    path = spec.train.pretrained_model_path
    if path and is_detector(path):
        take_matching(detector, path, MODEL_PATH)
    return detector


def take_matching(detector: AnyDetector, path: str | Path, where: str, prefixes: tuple[str, ...] = ("",)) -> list[str]:
    """Copy the tensors of the detector at ``path`` whose names (under ``prefixes``) and shapes ``detector`` has too.

    Returns:
        Names under ``prefixes`` that found no place or nothing to fill them.

    Raises:
        WeightsError: it cannot be read, or not one of its tensors fits.
    """
    _, theirs = read_detector(path, where)
    mine = {name: tensor for name, tensor in detector.state_dict().items() if name.startswith(prefixes)}
    fitting = {n: t for n, t in theirs.items() if n in mine and mine[n].shape == t.shape}
    if not any(tensor.ndim > 1 for tensor in fitting.values()):
        hint = "Take the same kind, width (d_model) and layers, in model.detector."
        raise WeightsError(f"nothing of {path} fits this detector", where=where, hint=hint)
    detector.load_state_dict(fitting, strict=False)
    return sorted(mine.keys() - fitting.keys())
