"""One frozen teacher: weights, normalisation and a forward that computes only what is wanted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from radioplat.errors import SpecError, WeightsError
from radioplat.models.checkpoint import is_checkpoint, load_student, read_architecture
from radioplat.models.features import Features
from radioplat.models.student import Student, StudentArchitecture, build_backbone
from radioplat.models.weights import fit, read_weights
from radioplat.spec.cluster import TeacherPrecision
from radioplat.spec.resolve import ResolvedTeacher


class Teacher(Protocol):
    """What a loss needs of a teacher, wherever it runs."""

    def forward(self, images: torch.Tensor, wanted: frozenset[str]) -> Features:
        """uint8 ``[B, 3, H, W]`` to raw features in bf16; only what is in ``wanted``."""
        ...


@dataclass(frozen=True)
class TeacherInfo:
    """What is known of a teacher without its weights.

    Attributes:
        grid: rows and columns of its map at the size it is fed.
        logits_dim: classes of its classifier, 0 for none.
        parameters: how many.
    """

    name: str
    summary_dim: int
    spatial_dim: int
    logits_dim: int
    stride: int
    grid: tuple[int, int]
    parameters: int


def architecture_of(teacher: ResolvedTeacher) -> StudentArchitecture:
    """The teacher's backbone; a radioplat checkpoint knows its own.

    Raises:
        SpecError: neither the spec nor the weights say which architecture it is.
    """
    backbone = teacher.backbone
    if teacher.weights and is_checkpoint(teacher.weights):
        return read_architecture(teacher.weights, f"{teacher.where}.pretrained_teacher_model_path")
    if not backbone.type:
        raise SpecError("a value is required here", where=f"{teacher.where}.model.backbone.type")
    return StudentArchitecture(
        type=backbone.type,
        kwargs=backbone.kwargs,
        cpe_max_size=backbone.cpe_max_size,
        num_registers=backbone.cpe_num_registers,
        register_multiple=backbone.register_multiple,
        img_size=teacher.input_size,
        num_classes=_classes(teacher) if "logits" in teacher.wanted else 0,
    )


def describe(teacher: ResolvedTeacher) -> TeacherInfo:
    """Widths, stride and size of a teacher, from its structure alone (no memory is taken).

    Raises:
        SpecError: an unknown name, arguments that it refuses, or an input size its patches do not divide.
    """
    architecture = architecture_of(teacher)
    with torch.device("meta"):
        backbone = build_backbone(architecture, f"{teacher.where}.model.backbone")
    if teacher.patch_size and teacher.patch_size != backbone.stride:
        raise SpecError(f"the backbone's patch is {backbone.stride}, not {teacher.patch_size}", where=f"{teacher.where}.patch_size")
    if backbone.needs_multiple and teacher.input_size % backbone.stride:
        nearest = max(1, round(teacher.input_size / backbone.stride)) * backbone.stride
        raise SpecError(
            f"{teacher.input_size} is not a multiple of the patch {backbone.stride}", where=f"{teacher.where}.input_size",
            hint=f"Take {nearest}.",
        )
    side = -(-teacher.input_size // backbone.stride)
    return TeacherInfo(
        teacher.name, backbone.summary_dim, backbone.spatial_dim, architecture.num_classes, backbone.stride, (side, side),
        sum(p.numel() for p in backbone.parameters()),
    )


def _classes(teacher: ResolvedTeacher) -> int:
    return teacher.backbone.output_dim[0] if teacher.backbone.output_dim else int(teacher.backbone.kwargs.get("num_classes", 1000))


class FrozenTeacher(nn.Module):
    """A teacher with its weights loaded.

    Args:
        teacher: what to build; weights are read from its local path.
        device: where it runs.

    Raises:
        WeightsError: see :func:`radioplat.models.weights.read_weights` and ``load_into``.
    """

    def __init__(self, teacher: ResolvedTeacher, device: torch.device | str = "cpu") -> None:
        super().__init__()
        self.name, self.wanted = teacher.name, teacher.wanted
        self.backbone = _load(teacher)
        self.dtype = compute_dtype(teacher.service.precision, torch.device(device))
        self.register_buffer("mean", torch.tensor(teacher.norm_mean).view(1, 3, 1, 1) * 255)
        self.register_buffer("std", torch.tensor(teacher.norm_std).view(1, 3, 1, 1) * 255)
        self.backbone.requires_grad_(False).eval().to(self.dtype)
        self.to(device)
        if torch.device(device).type == "cpu":
            self.to(memory_format=torch.channels_last)

    @torch.inference_mode()
    def forward(self, images: torch.Tensor, wanted: frozenset[str]) -> Features:
        """uint8 ``[B, 3, H, W]`` to raw features in bf16; only what is in ``wanted``."""
        images = images.to(self.mean.device).float()
        normalised = ((images - self.mean) / self.std).to(self.dtype).contiguous(memory_format=torch.channels_last)
        return self.backbone(normalised, wanted).map(lambda t: t.to(torch.bfloat16))


def _load(teacher: ResolvedTeacher) -> nn.Module:
    where = f"{teacher.where}.pretrained_teacher_model_path"
    if teacher.weights and is_checkpoint(teacher.weights):
        return _WithClassifier(load_student(teacher.weights, where))
    backbone = build_backbone(architecture_of(teacher), f"{teacher.where}.model.backbone")
    getattr(backbone, "model", backbone).load_state_dict(fitting_weights(teacher, backbone))
    return backbone


def fitting_weights(teacher: ResolvedTeacher, backbone: nn.Module | None = None) -> dict[str, torch.Tensor]:
    """Read the teacher's weights and check that they fit, without building it unless ``backbone`` is given.

    Raises:
        WeightsError: none are named, they cannot be read, or they belong to another architecture.
    """
    where = f"{teacher.where}.pretrained_teacher_model_path"
    if not teacher.weights:
        raise WeightsError("a teacher needs trained weights", where=where)
    if backbone is None:
        with torch.device("meta"):
            backbone = build_backbone(architecture_of(teacher), f"{teacher.where}.model.backbone")
    tensors = read_weights(teacher.weights, where)
    if is_checkpoint(teacher.weights):
        return tensors
    target = getattr(backbone, "model", backbone)
    return fit(target, tensors, teacher.weights, where, getattr(backbone, "classifier_prefix", ()))


class _WithClassifier(nn.Module):
    """A radioplat student taught on labels, as a teacher: its normalisation is the caller's, its classifier its own."""

    def __init__(self, student: Student) -> None:
        super().__init__()
        self.backbone, self.classifier = student.backbone, student.classifier

    def forward(self, images: torch.Tensor, wanted: frozenset[str]) -> Features:
        features = self.backbone(images, wanted)
        if "logits" in wanted and self.classifier is not None:
            features.named["logits"] = self.classifier(features.summary)
        return features


def compute_dtype(precision: TeacherPrecision, device: torch.device) -> torch.dtype:
    """The dtype of a forward on ``device``; ``auto`` is bf16 where the hardware multiplies it, else fp32."""
    if precision is not TeacherPrecision.auto:
        return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision.value]
    return torch.bfloat16 if has_native_bf16(device) else torch.float32


def has_native_bf16(device: torch.device) -> bool:
    """Whether ``device`` multiplies bf16 matrices in hardware (on a CPU: AMX or AVX512-BF16)."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.backends.cpu.get_cpu_capability()
    return "AVX512" in capabilities and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()) and _cpu_flag("avx512_bf16", "amx_bf16")


def _cpu_flag(*flags: str) -> bool:
    try:
        with open("/proc/cpuinfo") as lines:
            present = next((line.split() for line in lines if line.startswith("flags")), [])
    except OSError:
        return False
    return any(flag in present for flag in flags)
