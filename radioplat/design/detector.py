"""The detector of a run: what it is, what it starts from, and what cannot work, before a worker starts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from radioplat.errors import SpecError, WeightsError
from radioplat.models.detectors.base import Detector, DetectorArchitecture
from radioplat.models.detectors.checkpoint import read_detector, read_detector_architecture
from radioplat.models.model_kind import ModelKind
from radioplat.models.pretrained.start import MODEL_PATH, start_student
from radioplat.models.student.student import StudentArchitecture
from radioplat.models.vision_model import model_kind
from radioplat.objectives.detect import DetectObjective
from radioplat.objectives.detector_bindings import Widths, binding_widths
from radioplat.optim.parameter_groups import is_scale
from radioplat.spec.checks.tasks.training_task import is_taught
from radioplat.spec.resolved.image_sizes import student_sizes
from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.spec.schema.distill import DistillConfig
from radioplat.spec.schema.model import DetectorConfig
from radioplat.spec.schema.root import Spec
from radioplat.teachers.base.info import TeacherInfo

# What of a detector is its decoder: layers, the heads that choose its queries, and its view of the encoder's maps.
_DECODER = re.compile(
    r"detr\.(model\.)?(decoder|enc_output|enc_score_head|enc_bbox_head|denoising_class_embed|decoder_input_proj"
    r"|query_content|weight_embedding)\b"
)


def detector_architecture(spec: Spec, backbone: StudentArchitecture, classes: Sequence[str]) -> DetectorArchitecture:
    """What ``model.detector`` asks for on ``backbone``; left at its default, what pretrained weights say.

    Raises:
        SpecError: it cannot be built, or does not take images of the run's sizes.
    """
    config, path = spec.model.detector, _pretrained_detector(spec)
    known = read_detector_architecture(path, MODEL_PATH) if path else None
    quantized = None if known is None else known.quantized
    if known is not None:
        theirs = DetectorConfig(known.kind, known.options)
        config = theirs if config == DetectorConfig() else config
        if quantized is not None and config != theirs:
            hint = "Leave model.detector out: the checkpoint says what it is."
            raise SpecError(f"the quantized detector in {path} is another", where="model.detector", hint=hint)
    architecture = DetectorArchitecture(
        backbone, len(classes), config.kind, dict(config.options), tuple(classes), quantized
    )
    detector = Detector(architecture)
    for size in dict.fromkeys((spec.dataset.img_size, *(s for s, _ in student_sizes(spec)))):
        where = "dataset.img_size" if size == spec.dataset.img_size else "dataset.augmentation.multi_scales"
        if size % detector.stride:
            nearest = max(1, round(size / detector.stride)) * detector.stride
            message = f"{size} is not a multiple of the detector's stride {detector.stride}"
            raise SpecError(message, where=where, hint=f"Take {nearest}.")
        with torch.no_grad():
            detector.eval().outputs(torch.zeros(1, 3, size, size, dtype=torch.uint8))  # more queries than positions
    return architecture


def start_detector(spec: Spec, architecture: DetectorArchitecture, task: str) -> Detector:
    """A detector with its starting weights: seeded by ``train.seed``, then what the spec names as pretrained.

    A pretrained detector gives every tensor of the same name and shape: one of other classes all but those that score
    them.

    Raises:
        WeightsError: pretrained weights cannot be read, or nothing in them fits.
    """
    student = start_student(spec, architecture.student)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.train.seed)
        detector = Detector(architecture)
    detector.student.load_state_dict(student.fold().state_dict())
    if path := _pretrained_detector(spec):
        left = take_matching(detector, path, MODEL_PATH)
        if strange := [name for name in left if is_scale(name)]:
            hint = "Leave model.backbone and model.detector out: the checkpoint says what they are."
            raise SpecError(f"the quantizers of {path} do not fit: {strange[0]}", where=MODEL_PATH, hint=hint)
    if is_taught(task) and spec.distill.decoder_from_teacher:
        take_decoder(detector, spec.distill.teacher[0].pretrained_teacher_model_path or "")
    return detector


def _pretrained_detector(spec: Spec) -> str | None:
    """``train.pretrained_model_path``, where a detector is there."""
    path = spec.train.pretrained_model_path
    return path if path and model_kind(path) is ModelKind.detector else None


def take_decoder(detector: Detector, path: str | Path) -> None:
    """Give ``detector`` the decoder of the detector at ``path``.

    Raises:
        WeightsError: it cannot be read, or its decoder is another.
    """
    where = "distill.decoder_from_teacher"
    _, theirs = read_detector(path, where)
    mine = {n: t.shape for n, t in detector.state_dict().items() if _DECODER.match(n)}
    given = {n: t for n, t in theirs.items() if _DECODER.match(n)}
    differ = sorted({n for n, t in given.items() if mine.get(n) != t.shape} | (mine.keys() - given.keys()))
    if differ:
        name, shapes = differ[0], {n: t.shape for n, t in given.items()}
        here, there = (tuple(of[name]) if name in of else "not" for of in (mine, shapes))
        message = f"the teacher's decoder is another: {name} is {there} there and {here} here"
        hint = "Take its kind, d_model, decoder_layers, num_queries and classes in model.detector, or set it to false."
        raise WeightsError(message, where=where, hint=hint)
    detector.load_state_dict(given, strict=False)


def detector_widths(
    spec: Spec, form: DetectorArchitecture, teachers: Sequence[ResolvedTeacher], infos: Mapping[str, TeacherInfo]
) -> Widths:
    """See :func:`binding_widths`; also sees that the teacher's decoder fits, where it is asked for.

    Raises:
        SpecError, WeightsError: bindings or the decoder do not fit.
    """
    if not teachers:
        return {}
    detector = Detector(form)
    if spec.distill.decoder_from_teacher:
        take_decoder(detector, spec.distill.teacher[0].pretrained_teacher_model_path or "")
    return binding_widths(detector, teachers, infos, spec.dataset.img_size)


def detect_objective(
    detector: Detector,
    view: str,
    teachers: Sequence[ResolvedTeacher],
    widths: Widths,
    config: DistillConfig,
    seed: int,
) -> DetectObjective:
    """The module of a run; projections are seeded, and so equal on every rank."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return DetectObjective(detector, view, teachers, widths, config)


def take_matching(detector: Detector, path: str | Path, where: str) -> list[str]:
    """Copy the tensors of the detector at ``path`` whose names and shapes ``detector`` has too.

    Returns:
        Names of those of ``detector`` that nothing filled.

    Raises:
        WeightsError: it cannot be read, or not one of its tensors fits.
    """
    _, theirs = read_detector(path, where)
    mine = detector.state_dict()
    fitting = {n: t for n, t in theirs.items() if n in mine and mine[n].shape == t.shape}
    if not any(tensor.ndim > 1 for tensor in fitting.values()):
        hint = "Take the same kind, width (d_model) and layers, in model.detector."
        raise WeightsError(f"nothing of {path} fits this detector", where=where, hint=hint)
    detector.load_state_dict(fitting, strict=False)
    return sorted(mine.keys() - fitting.keys())
