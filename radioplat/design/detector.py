"""The detector of a run before a worker starts: architecture, starting weights, and checks of both."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from radioplat.errors import SpecError, WeightsError
from radioplat.models.detectors.base import Detector, DetectorArchitecture
from radioplat.models.detectors.checkpoint import read_detector, read_detector_architecture
from radioplat.models.model_kind import ModelKind
from radioplat.models.pretrained.initial_weights import MODEL_PATH, start_student
from radioplat.models.student.architecture import StudentArchitecture
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

# Names of a detector's decoder: layers, the heads that choose its queries, and its projections of the encoder's maps.
_DECODER = re.compile(
    r"detr\.(model\.)?(decoder|enc_output|enc_score_head|enc_bbox_head|denoising_class_embed|decoder_input_proj"
    r"|query_content|weight_embedding)\b"
)
_ENCODER = re.compile(r"detr\.(model\.)?(encoder|encoder_input_proj|input_proj)\b")


def detector_architecture(spec: Spec, backbone: StudentArchitecture, classes: Sequence[str]) -> DetectorArchitecture:
    """Return the architecture of ``model.detector`` on ``backbone``; at its default, that of the pretrained weights.

    It has ``dataset.num_classes`` classes, and by default those of the training images. Labels count from 0 without
    gaps in both cases: further classes are the last ones, and no object has them.

    Raises:
        SpecError: it cannot be built, or does not support the image sizes of the run.
    """
    config, path = spec.model.detector, _pretrained_detector(spec)
    known = read_detector_architecture(path, MODEL_PATH) if path else None
    quantized = None if known is None else known.quantized
    if known is not None:
        theirs = DetectorConfig(known.kind, known.options)
        config = theirs if config == DetectorConfig() else config
        if quantized is not None and config != theirs:
            hint = "Leave model.detector out: the checkpoint has its own."
            raise SpecError(f"the quantized detector in {path} differs", where="model.detector", hint=hint)
    most = spec.dataset.num_classes or len(classes)
    if most < len(classes):
        hint = "Leave it out, or take at least that number."
        message = f"the training images have {len(classes)} classes, not {most}"
        raise SpecError(message, where="dataset.num_classes", hint=hint)
    architecture = DetectorArchitecture(backbone, most, config.kind, dict(config.options), tuple(classes), quantized)
    detector = Detector(architecture)
    for size in dict.fromkeys((spec.dataset.img_size, *(s for s, _ in student_sizes(spec)))):
        where = "dataset.img_size" if size == spec.dataset.img_size else "dataset.augmentation.multi_scales"
        if size % detector.stride:
            nearest = max(1, round(size / detector.stride)) * detector.stride
            message = f"{size} is not a multiple of the detector's stride {detector.stride}"
            raise SpecError(message, where=where, hint=f"Take {nearest}.")
        with torch.no_grad():
            detector.eval().outputs(torch.zeros(1, 3, size, size, dtype=torch.uint8))  # checks the number of queries
    return architecture


def start_detector(spec: Spec, architecture: DetectorArchitecture, task: str) -> Detector:
    """Build a detector with its starting weights: seeded by ``train.seed``, then the pretrained ones of the spec.

    Tensors of a pretrained detector with the same name and shape are copied; for other classes, not the classifiers.

    Raises:
        WeightsError: pretrained weights cannot be read, or nothing in them fits.
    """
    student = start_student(spec, architecture.student)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.train.seed)
        detector = Detector(architecture)
    detector.student.load_state_dict(student.fold().state_dict())
    if path := _pretrained_detector(spec):
        unfilled = load_matching(detector, path, MODEL_PATH)
        if scales := [name for name in unfilled if is_scale(name)]:
            hint = "Leave model.backbone and model.detector out: the checkpoint has its own."
            raise SpecError(f"the quantizers of {path} do not fit: {scales[0]}", where=MODEL_PATH, hint=hint)
    if is_taught(task) and spec.distill.decoder_from_teacher:
        take_decoder(detector, spec.distill.teacher[0].pretrained_teacher_model_path or "")
    if is_taught(task) and spec.distill.encoder_from_teacher:
        _take_encoder(detector, spec.distill.teacher[0].pretrained_teacher_model_path or "")
    return detector


def _pretrained_detector(spec: Spec) -> str | None:
    """Return ``train.pretrained_model_path`` if it is a detector."""
    path = spec.train.pretrained_model_path
    return path if path and model_kind(path) is ModelKind.detector else None


def take_decoder(detector: Detector, path: str | Path) -> None:
    """Load the decoder of the detector at ``path`` into ``detector``.

    Raises:
        WeightsError: it cannot be read, or its decoder has other names or shapes.
    """
    where = "distill.decoder_from_teacher"
    _, theirs = read_detector(path, where)
    shapes = {n: t.shape for n, t in detector.state_dict().items() if _DECODER.match(n)}
    decoder = {n: t for n, t in theirs.items() if _DECODER.match(n)}
    differ = sorted({n for n, t in decoder.items() if shapes.get(n) != t.shape} | (shapes.keys() - decoder.keys()))
    if differ:
        name, given = differ[0], {n: t.shape for n, t in decoder.items()}
        here, there = (tuple(of[name]) if name in of else "absent" for of in (shapes, given))
        message = f"the teacher's decoder differs: {name} is {there} there and {here} here"
        hint = "Take its kind, d_model, decoder_layers, num_queries and classes in model.detector, or set it to false."
        raise WeightsError(message, where=where, hint=hint)
    detector.load_state_dict(decoder, strict=False)


def _take_encoder(detector: Detector, path: str | Path) -> None:
    """Load the layers that fit of the encoder of the detector at ``path``: projections of maps of another width do not.

    Raises:
        WeightsError: it cannot be read, or no layer with weights fits.
    """
    where = "distill.encoder_from_teacher"
    _, theirs = read_detector(path, where)
    own = detector.state_dict()
    encoder = {n: t for n, t in theirs.items() if _ENCODER.match(n)}
    unlike = {n.rpartition(".")[0] for n, t in encoder.items() if n not in own or own[n].shape != t.shape}
    same = {n: t for n, t in encoder.items() if n.rpartition(".")[0] not in unlike}
    if not any(n.endswith(".weight") for n in same):
        hint = "Take its kind and d_model in model.detector, or set it to false."
        raise WeightsError("no layer of the teacher's encoder fits", where=where, hint=hint)
    detector.load_state_dict(same, strict=False)


def detector_widths(
    spec: Spec,
    architecture: DetectorArchitecture,
    teachers: Sequence[ResolvedTeacher],
    infos: Mapping[str, TeacherInfo],
) -> Widths:
    """Return :func:`binding_widths`; with ``decoder_from_teacher``, check that the teacher's decoder fits.

    Raises:
        SpecError, WeightsError: bindings or the decoder do not fit.
    """
    if not teachers:
        return {}
    detector = Detector(architecture)
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
    """Return the objective of a run; projections are seeded, so equal on every rank."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return DetectObjective(detector, view, teachers, widths, config)


def load_matching(detector: Detector, path: str | Path, where: str) -> list[str]:
    """Copy the tensors of the detector at ``path`` whose names and shapes ``detector`` has too.

    Returns:
        Names of the tensors of ``detector`` that stay as they are.

    Raises:
        WeightsError: it cannot be read, or none of its tensors fits.
    """
    _, theirs = read_detector(path, where)
    own = detector.state_dict()
    fitting = {n: t for n, t in theirs.items() if n in own and own[n].shape == t.shape}
    if not any(tensor.ndim > 1 for tensor in fitting.values()):
        hint = "Take the same kind, width (d_model) and layers, in model.detector."
        raise WeightsError(f"no tensor of {path} fits this detector", where=where, hint=hint)
    detector.load_state_dict(fitting, strict=False)
    return sorted(own.keys() - fitting.keys())
