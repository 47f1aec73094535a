"""One frozen teacher: weights, normalisation and a forward that computes only what is wanted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from radioplat.errors import SpecError, WeightsError
from radioplat.models import names
from radioplat.models.checkpoint import is_checkpoint, load_student, read_architecture
from radioplat.models.features import Features
from radioplat.models.fold import fold_batch_norm
from radioplat.models.probe import probe
from radioplat.models.radio_vit import RadioViT
from radioplat.models.student import StudentArchitecture, build_backbone, taught_summary
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
        kwargs={k: v for k, v in backbone.kwargs.items() if k != "num_classes"},
        cpe_max_size=backbone.cpe_max_size,
        num_registers=backbone.cpe_num_registers,
        register_multiple=backbone.register_multiple,
        img_size=teacher.input_size,
        num_classes=_classes(teacher) if "logits" in teacher.wanted else 0,
    )


def describe(teacher: ResolvedTeacher) -> TeacherInfo:
    """Widths, stride and size of a teacher, from its structure alone (no memory is taken).

    Raises:
        SpecError: an unknown name, arguments that it refuses, an input size that it cannot take, or class scores
            wanted of a teacher without a classifier.
    """
    architecture = architecture_of(teacher)
    with torch.device("meta"):
        model = _build(architecture, f"{teacher.where}.model.backbone")
    backbone = model.backbone
    if teacher.patch_size and teacher.patch_size != backbone.stride:
        raise SpecError(
            f"the backbone's patch is {backbone.stride}, not {teacher.patch_size}", where=f"{teacher.where}.patch_size"
        )
    if backbone.needs_multiple and teacher.input_size % backbone.stride:
        nearest = max(1, round(teacher.input_size / backbone.stride)) * backbone.stride
        raise SpecError(
            f"{teacher.input_size} is not a multiple of the patch {backbone.stride}",
            where=f"{teacher.where}.input_size",
            hint=f"Take {nearest}.",
        )
    if "logits" in teacher.wanted and not architecture.num_classes:
        where = f"{teacher.where}.mode"
        raise SpecError("this teacher has no classifier", where=where, hint="Take summary or spatial.")
    # Asked of the model, not computed from the stride: some round up, some round down.
    found = probe(model, teacher.input_size, frozenset({"summary", "spatial"}), f"{teacher.where}.input_size")
    return TeacherInfo(
        teacher.name,
        found.summary.shape[-1],
        found.spatial.shape[-1],
        architecture.num_classes,
        backbone.stride,
        (found.spatial.shape[1], found.spatial.shape[2]),
        sum(p.numel() for p in model.parameters()),
    )


def _classes(teacher: ResolvedTeacher) -> int:
    """Of a classifier inside the weights file; 0 where the architecture has none."""
    backbone = teacher.backbone
    if names.resolve(backbone.type or "", where=f"{teacher.where}.model.backbone.type").radio:
        return 0
    return backbone.output_dim[0] if backbone.output_dim else int(backbone.kwargs.get("num_classes", 1000))


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
        self.model = _load(teacher).eval()
        size = teacher.input_size
        self.model.backbone = fold_batch_norm(self.model.backbone, torch.zeros(1, 3, size, size))
        self.dtype = compute_dtype(teacher.service.precision, torch.device(device))
        self.register_buffer("mean", torch.tensor(teacher.norm_mean).view(1, 3, 1, 1) * 255)
        self.register_buffer("std", torch.tensor(teacher.norm_std).view(1, 3, 1, 1) * 255)
        self.model.requires_grad_(False).eval().to(self.dtype)
        self.to(device)
        if torch.device(device).type == "cpu":
            self.to(memory_format=torch.channels_last)

    @torch.inference_mode()
    def forward(self, images: torch.Tensor, wanted: frozenset[str]) -> Features:
        """uint8 ``[B, 3, H, W]`` to raw features in bf16; only what is in ``wanted``."""
        images = images.to(self.mean.device).float()
        normalised = ((images - self.mean) / self.std).to(self.dtype).contiguous(memory_format=torch.channels_last)
        return self.model(normalised, wanted).map(lambda t: t.to(torch.bfloat16))


def _load(teacher: ResolvedTeacher) -> _Model:
    where = f"{teacher.where}.pretrained_teacher_model_path"
    if teacher.weights and is_checkpoint(teacher.weights):
        student = load_student(teacher.weights, where)
        return _Model(student.backbone, student.classifier, student.architecture.summary_slots)
    model = _build(architecture_of(teacher), f"{teacher.where}.model.backbone")
    getattr(model.backbone, "model", model.backbone).load_state_dict(fitting_weights(teacher, model.backbone))
    return model


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


class _Model(nn.Module):
    """A backbone with the classifier that a RADIO student taught on labels has beside it; gives only what is wanted."""

    def __init__(self, backbone: nn.Module, classifier: nn.Module | None, slots: list[int]) -> None:
        super().__init__()
        self.backbone, self.classifier, self.slots = backbone, classifier, slots

    def forward(self, images: torch.Tensor, wanted: frozenset[str]) -> Features:
        own = self.classifier is not None and "logits" in wanted
        found = self.backbone(images, wanted - {"logits"} | {"summary"} if own else wanted)
        named = {name: value for name, value in found.named.items() if name in wanted}
        if own:
            named["logits"] = self.classifier(found.summary)
        summary = taught_summary(found, self.slots) if "summary" in wanted else None
        return Features(summary, found.spatial if "spatial" in wanted else None, named)


def _build(architecture: StudentArchitecture, where: str) -> _Model:
    """Without weights. A timm model brings its own classifier."""
    backbone = build_backbone(architecture, where)
    apart = architecture.num_classes and isinstance(backbone, RadioViT)
    classifier = nn.Linear(backbone.summary_dim, architecture.num_classes) if apart else None
    return _Model(backbone, classifier, architecture.summary_slots)


def compute_dtype(precision: TeacherPrecision, device: torch.device) -> torch.dtype:
    """The dtype of a forward on ``device``; ``auto`` is bf16 where the hardware multiplies it, else fp32."""
    if precision is not TeacherPrecision.auto:
        return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision.value]
    return torch.bfloat16 if has_native_bf16(device) else torch.float32


def has_native_bf16(device: torch.device) -> bool:
    """Whether ``device`` multiplies bf16 matrices in hardware (on a CPU: AMX or AVX512-BF16)."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if "AVX512" not in torch.backends.cpu.get_cpu_capability():
        return False
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()) and _cpu_flag("avx512_bf16", "amx_bf16")


def _cpu_flag(*flags: str) -> bool:
    try:
        with open("/proc/cpuinfo") as lines:
            present = next((line.split() for line in lines if line.startswith("flags")), [])
    except OSError:
        return False
    return any(flag in present for flag in flags)
