"""One frozen teacher: weights, normalisation and a forward that computes only what is wanted."""

from __future__ import annotations

import contextlib
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from radioplat.errors import SpecError, WeightsError
from radioplat.models.capture import captured, find_module
from radioplat.models.features import Features
from radioplat.models.modifiers.fold_batchnorm import fold_batch_norm
from radioplat.models.probe import probe
from radioplat.spec.resolved.normalisation import normalisation_problems
from radioplat.spec.resolved.number_formats import DATA_TYPES
from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.spec.resolved.terms import MODULE
from radioplat.spec.schema.cluster import TeacherPrecision
from radioplat.teachers.adapters.adapter import BOTH, Adapter, weights_field
from radioplat.teachers.adapters.registry import adapter_class
from radioplat.teachers.base.ensemble import in_common, mean_of
from radioplat.teachers.base.info import TeacherInfo, _numbers
from radioplat.teachers.upsamplers.registry import upsampler_field, upsampler_module


class Teacher(Protocol):
    """What a loss needs of a teacher, wherever it runs."""

    def forward(self, images: torch.Tensor, wanted: frozenset[str]) -> Features:
        """uint8 ``[B, 3, H, W]`` to raw features in bf16; only what is in ``wanted``."""
        ...


def oddities(teacher: ResolvedTeacher, info: TeacherInfo) -> list[str]:
    """What of the spec differs from what the model was trained with; each runs, and gives worse features."""
    wants, found = info.wants, []
    if wants.mean and wants.std:
        ours, theirs = (*teacher.norm_mean, *teacher.norm_std), (*wants.mean, *wants.std)
        if max(abs(a - b) for a, b in zip(ours, theirs, strict=True)) > 0.01:
            found.append(
                f"images are normalised by mean {_numbers(teacher.norm_mean)} std {_numbers(teacher.norm_std)}, and "
                f"the weights were trained with mean {_numbers(wants.mean)} std {_numbers(wants.std)}"
            )
    if wants.size and not 0.5 <= teacher.input_size / wants.size <= 2:
        found.append(f"it sees {teacher.input_size} px and was trained at {wants.size}")
    return found


def describe(teacher: ResolvedTeacher) -> TeacherInfo:
    """Widths, stride and size of a teacher, from its structure alone (no memory is taken).

    Raises:
        SpecError: an unknown name, arguments that it refuses, an input size that it cannot take, a normalisation
            that is none, class scores wanted of a teacher without a classifier, or another factor than its
            upsampler's.
        WeightsError: its upsampler cannot be read or belongs to another teacher.
    """
    if teacher.ensemble:
        return in_common(teacher, [describe(member) for member in teacher.members])
    if wrong := list(normalisation_problems(teacher.norm_mean, teacher.norm_std, f"{teacher.where}.norm_")):
        raise SpecError(*wrong)
    model = _structure(teacher)
    if teacher.patch_size and teacher.patch_size != model.stride:
        raise SpecError(
            f"the backbone's patch is {model.stride}, not {teacher.patch_size}", where=f"{teacher.where}.patch_size"
        )
    patch = model.multiple or model.stride
    if model.needs_multiple and teacher.input_size % patch:
        nearest = max(1, round(teacher.input_size / patch)) * patch
        raise SpecError(
            f"{teacher.input_size} is not a multiple of the patch {patch}",
            where=f"{teacher.where}.input_size",
            hint=f"Take {nearest}.",
        )
    if "logits" in teacher.wanted and not model.logits_dim:
        where = f"{teacher.where}.mode"
        raise SpecError("this teacher has no classifier", where=where, hint="Take summary or spatial.")
    # Asked of the model, not computed from the stride: some round up, some round down.
    device = "meta" if type(model).structure_without_weights else "cpu"
    for bound in teacher.bindings:
        find_module(model.target, bound.teacher_module, f"{bound.where}.teacher_module_name")
    with captured(model.target, teacher.modules) as outputs:
        wanted = BOTH | (teacher.wanted & {"logits"})
        found = probe(model, teacher.input_size, wanted, f"{teacher.where}.input_size", device)
    for bound in teacher.bindings:
        if bound.teacher_module not in outputs:
            where = f"{bound.where}.teacher_module_name"
            raise SpecError(f"the teacher does not run its module {bound.teacher_module!r}", where=where)
    assert found.spatial is not None and found.summary is not None  # both were asked for
    rows, columns, width = found.spatial.shape[1:]
    factor, parameters = teacher.upsample_factor, sum(p.numel() for p in model.parameters())
    if teacher.upsampler_checkpoint:
        module = upsampler_module()
        parameters += module.parameter_count(module.read_for_teacher(teacher, width))
    return TeacherInfo(
        teacher.name,
        found.summary.shape[-1],
        width,
        model.logits_dim,
        model.stride / factor,
        (rows * factor, columns * factor),
        parameters,
        type(model).kind,
        model.wants,
        {MODULE + name: tuple(model.as_named(output, (rows, columns)).shape[1:]) for name, output in outputs.items()},
        model.class_names,
    )


def check_weights(teacher: ResolvedTeacher) -> None:
    """Read all weights of the teacher and of its upsampler, and see that they fit, without keeping them.

    Raises:
        WeightsError: none are named, they cannot be read, or they belong to another architecture.
    """
    if not teacher.weights:
        raise WeightsError("a teacher needs trained weights", where=weights_field(teacher))
    for member in teacher.members:
        _structure(member).check(member)
    if teacher.upsampler_checkpoint:
        upsampler_module().load_upsampler(teacher.upsampler_checkpoint, upsampler_field(teacher))


def _structure(teacher: ResolvedTeacher) -> Adapter:
    """Without weights and, where the adapter can, without memory."""
    kind = adapter_class(teacher)
    with torch.device("meta") if kind.structure_without_weights else contextlib.nullcontext():
        return kind.build(teacher)


class FrozenTeacher(nn.Module):
    """A teacher with its weights loaded; of an ensemble the first member, with the others beside it.

    Args:
        teacher: what to build; weights are read from its local path.
        device: where it runs.

    Raises:
        WeightsError: see :func:`radioplat.models.weights.read.read_weights` and ``load_into``.
        SpecError, WeightsError: its upsampler does not belong to it.
    """

    def __init__(self, teacher: ResolvedTeacher, device: torch.device | str = "cpu") -> None:
        super().__init__()
        self.name, self.wanted = teacher.name, teacher.wanted
        teacher, *others = teacher.members
        self.others = nn.ModuleList(FrozenTeacher(other, device) for other in others)
        if not teacher.weights:
            raise WeightsError("a teacher needs trained weights", where=weights_field(teacher))
        model = adapter_class(teacher).build(teacher)
        model.load(teacher)
        # A folded BatchNorm is gone from the graph, and a module before it gives something else.
        self.modules_wanted = teacher.modules
        self.model = model.eval() if self.modules_wanted else _folded(model.eval(), teacher.input_size)
        self.dtype = compute_dtype(teacher.service.precision, torch.device(device))
        if model.in_fp32 and teacher.service.precision is TeacherPrecision.auto:
            self.dtype = torch.float32
        self.register_buffer("mean", torch.tensor(teacher.norm_mean).view(1, 3, 1, 1) * 255)
        self.register_buffer("std", torch.tensor(teacher.norm_std).view(1, 3, 1, 1) * 255)
        self.model.requires_grad_(False).eval().to(self.dtype)
        self.upsampler = _upsampler(teacher)  # in fp32: it is small beside the backbone
        self._enlarge = teacher.view_size == teacher.input_size
        self.to(device)
        if torch.device(device).type == "cpu":
            self.to(memory_format=torch.channels_last)
        compiles = teacher.service.compile and not self.modules_wanted  # hooks are not seen by a compiled graph
        self._run = torch.compile(self.model, dynamic=False) if compiles else self.model

    def normalise_by(self, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        """Take another normalisation of images in [0, 1]."""
        for model in (self, *self.others):
            for buffer, values in ((model.mean, mean), (model.std, std)):
                buffer.copy_(torch.tensor(values).view(1, 3, 1, 1) * 255)

    @torch.inference_mode()
    def forward(self, images: torch.Tensor, wanted: frozenset[str]) -> Features:
        """uint8 ``[B, 3, H, W]`` to raw features in bf16; only what is in ``wanted``.

        Images of an upsampled teacher have its ``view_size``, ``upsample_factor`` times what its backbone sees.
        """
        own = self._answer(images, wanted)
        if self.others:
            own = mean_of([own, *(other._answer(images, wanted) for other in self.others)])
        return own.map(lambda t: t.to(torch.bfloat16))

    def _answer(self, images: torch.Tensor, wanted: frozenset[str]) -> Features:
        """This member's features, not rounded yet."""
        normalised = self.normalise(images)
        if self.upsampler is None:
            return self._with_modules(normalised, wanted)
        if self._enlarge:
            normalised = enlarge(normalised, self.upsampler.config.factor)
        features = self._with_modules(self.upsampler.shrink(normalised), wanted)
        if features.spatial is not None:
            features.spatial = self.upsampler(normalised, self.encode, features.spatial)
        return features

    def normalise(self, images: torch.Tensor) -> torch.Tensor:
        """uint8 ``[B, 3, H, W]`` to fp32 as the backbone wants it, on its device."""
        return (images.to(self.mean.device).float() - self.mean) / self.std

    @torch.no_grad()
    def encode(self, normalised: torch.Tensor) -> torch.Tensor:
        """The backbone's own raw map, without an upsampler: normalised ``[B, 3, H, W]`` to fp32 ``[B, h, w, D]``."""
        spatial = self._backbone(normalised, frozenset({"spatial"})).spatial
        assert spatial is not None
        return spatial.float()

    def _with_modules(self, normalised: torch.Tensor, wanted: frozenset[str]) -> Features:
        names = [name for name in self.modules_wanted if MODULE + name in wanted]
        if not names:
            return self._backbone(normalised, wanted)
        with captured(self.model.target, names) as outputs:
            features = self._backbone(normalised, wanted)
        height, width = normalised.shape[-2:]
        grid = height // self.model.stride, width // self.model.stride
        features.named |= {MODULE + name: self.model.as_named(output, grid) for name, output in outputs.items()}
        return features

    def _backbone(self, normalised: torch.Tensor, wanted: frozenset[str]) -> Features:
        return self._run(normalised.to(self.dtype).contiguous(memory_format=torch.channels_last), wanted)


def enlarge(images: torch.Tensor, factor: int) -> torch.Tensor:
    """``[B, 3, H, W]`` to ``[B, 3, factor * H, factor * W]`` where no finer image is to be had (bicubic)."""
    return F.interpolate(images, scale_factor=factor, mode="bicubic", align_corners=False)


def _upsampler(teacher: ResolvedTeacher) -> nn.Module | None:
    if not teacher.upsampler_checkpoint:
        return None
    describe(teacher)  # raises where the two do not belong together
    return upsampler_module().load_upsampler(teacher.upsampler_checkpoint, upsampler_field(teacher))


def _folded(model: Adapter, size: int) -> Adapter:
    """With BatchNorm folded into the convolutions before it, where there is any."""
    if not any(isinstance(m, _BatchNorm) for m in model.modules()):
        return model
    return fold_batch_norm(model, torch.zeros(1, 3, size, size))


def compute_dtype(precision: TeacherPrecision, device: torch.device) -> torch.dtype:
    """The dtype of a forward on ``device``; ``auto`` is bf16 where the hardware multiplies it, else fp32."""
    if precision is not TeacherPrecision.auto:
        return getattr(torch, DATA_TYPES[precision.value].torch_type)
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
