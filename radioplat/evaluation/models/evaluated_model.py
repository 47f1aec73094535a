"""Evaluated models: encoders, functions from uint8 images to features, and heads for teachers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from radioplat.models.backbones.radio_1d import Radio1D
from radioplat.models.features import KINDS, Features
from radioplat.models.student.fold_target_norm import fold_heads
from radioplat.models.student.student import Student
from radioplat.spec.resolved.number_formats import DATA_TYPES
from radioplat.spec.resolved.precision import precision_of
from radioplat.spec.schema.train import Precision, TrainConfig
from radioplat.teachers.base.teacher import FrozenTeacher, has_native_bf16

Encoder = Callable[[torch.Tensor], Features]  # uint8 [B, 3, H, W] -> Features, fp32

_BOTH = frozenset({"summary", "spatial"})


def student_encoder(student: Student, num_tokens: int | None = None) -> Encoder:
    """Return the student's backbone, and classifier if any, as an encoder, in evaluation mode and its precision.

    Args:
        num_tokens: of a student with a sequence; None for all.
    """
    student = student.eval()
    if isinstance(student.backbone, Radio1D):
        student = _with_tokens(student, num_tokens)
    wanted = _BOTH | {"logits"} if student.architecture.num_classes else _BOTH
    device = next(student.parameters()).device

    @torch.inference_mode()
    def encode(images: torch.Tensor) -> Features:
        """Return the student's features as float32."""
        return student(images.to(device), wanted).map(lambda t: t.float())

    return encode


def _with_tokens(student: Student, num_tokens: int | None) -> Student:
    """Return a student with the same tensors and another number of tokens; several are used at a time, in threads."""
    own, backbone = copy.copy(student), copy.copy(student.backbone)
    backbone.num_tokens = num_tokens
    own._modules = {**student._modules, "backbone": backbone}
    return own


def in_precision(student: Student, dtype: torch.dtype) -> Student:
    """Cast the weights; images are normalised, and heads add means, in fp32."""
    for part in (student.backbone, student.heads, student.classifier):
        if part is not None:
            part.to(dtype)
    return student


def validation_dtype(train: TrainConfig, device: torch.device) -> torch.dtype:
    """Return the number format in which a run validates its student: that of the run, if ``device`` multiplies it.

    CPUs without bf16 units compute in fp32: to emulate bf16 is slower, and rounds.
    """
    precision = precision_of(train)
    if device.type == "cpu" and (precision is Precision.fp16 or not has_native_bf16(device)):
        return torch.float32
    return getattr(torch, DATA_TYPES[precision.value].torch_type)


def teacher_encoder(teacher: FrozenTeacher) -> Encoder:
    """Return an encoder of a frozen teacher's raw features."""

    def encode(images: torch.Tensor) -> Features:
        """Return the teacher's features as float32."""
        return teacher(images, _BOTH).map(lambda t: t.float())

    return encode


@dataclass(frozen=True)
class EvaluatedModel:
    """A model that is evaluated, or a teacher.

    Attributes:
        size: side of its input in pixels.
        heads: heads for teachers, whose output is compared with them; None for a teacher.
        variant_of: name of the model that this is at another resolution, or with fewer tokens; then only kNN and
            fidelity are measured, and agreement across resolutions.
        num_tokens: of a student with a sequence, if not all.
        where: the spec field that names it.
    """

    encode: Encoder
    size: int
    heads: StudentHeads | NamedHeads | None
    variant_of: str | None = None
    num_tokens: int | None = None
    where: str = "evaluate.checkpoint"

    def has_head(self, teacher: str, kind: str) -> bool:
        """Return whether it has a head for this kind of the teacher's features."""
        return self.heads is not None and (teacher, kind) in self.heads.head_widths


class StudentHeads:
    """The heads of a student, in the precision of its weights.

    Attributes:
        names: the teachers that there is a head for.
        head_widths: width by teacher and kind (``summary``, ``spatial``).
    """

    def __init__(self, student: Student) -> None:
        fold_heads(student)
        self._student, self.names = student, student.head_names
        self._dtype = next(student.backbone.parameters()).dtype
        widths = {(h.name, k): getattr(h, f"{k}_dim") for h in student.architecture.heads for k in KINDS}
        self.head_widths: Mapping[tuple[str, str], int] = {key: w for key, w in widths.items() if w is not None}

    def head(self, name: str, features: Features) -> Features:
        """Map features to the space of teacher ``name``, fp32; they are cast back to that precision, which is exact."""
        return self._student.head(name, features.map(lambda t: t.to(self._dtype))).map(lambda t: t.float())


class NamedHeads:
    """The heads of an exported file, computed with the encoder: outputs ``<teacher>.<kind>``.

    Args:
        head_widths: width by teacher and kind.
    """

    def __init__(self, head_widths: Mapping[tuple[str, str], int]) -> None:
        self.head_widths = dict(head_widths)
        self.names = list(dict.fromkeys(name for name, _ in head_widths))

    def head(self, name: str, features: Features) -> Features:
        """Return the encoder's output for the head of teacher ``name``."""
        return Features(features.named.get(f"{name}.summary"), features.named.get(f"{name}.spatial"))
