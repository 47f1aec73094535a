"""A frozen teacher: weights, normalisation, and a forward that computes only the requested features."""

from __future__ import annotations

import contextlib

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from radioplat.errors import SpecError
from radioplat.models.capture import captured, require_modules
from radioplat.models.features import Features
from radioplat.models.modifiers.fold_batchnorm import fold_batch_norm
from radioplat.models.on_meta import on_meta, without_random_values
from radioplat.models.probe import probe
from radioplat.spec.resolved.normalisation import normalisation_problems
from radioplat.spec.resolved.number_formats import DATA_TYPES
from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.spec.resolved.terms import MODULE
from radioplat.spec.schema.cluster import TeacherPrecision
from radioplat.teachers.adapters.adapter import BOTH, Adapter, weights_of
from radioplat.teachers.adapters.registry import adapter_class
from radioplat.teachers.base.ensemble import in_common, mean_of
from radioplat.teachers.base.info import TeacherInfo, _numbers
from radioplat.teachers.upsamplers.registry import upsampler_field, upsampler_module


def spec_mismatches(teacher: ResolvedTeacher, info: TeacherInfo) -> list[str]:
    """Describe where the spec differs from the model's training; the run works, with worse features."""
    native, messages = info.native, []
    if native.mean and native.std:
        ours, theirs = (*teacher.norm_mean, *teacher.norm_std), (*native.mean, *native.std)
        if max(abs(a - b) for a, b in zip(ours, theirs, strict=True)) > 0.01:
            messages.append(
                f"images are normalised by mean {_numbers(teacher.norm_mean)} std {_numbers(teacher.norm_std)}, and "
                f"the weights were trained with mean {_numbers(native.mean)} std {_numbers(native.std)}"
            )
    if native.size and not 0.5 <= teacher.input_size / native.size <= 2:
        messages.append(f"it sees {teacher.input_size} px and was trained at {native.size}")
    return messages


def describe(teacher: ResolvedTeacher) -> TeacherInfo:
    """Return widths, stride and size of a teacher, from its structure alone, on the meta device if possible.

    Raises:
        SpecError: an unknown name, arguments that the model rejects, an input size that it does not support, an invalid
            normalisation, class scores requested of a teacher without a classifier, or another factor than its
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
    # Measured, not computed from the stride: some models round up, some round down.
    device = "meta" if type(model).structure_without_weights else "cpu"
    require_modules(model.target, {f"{b.where}.teacher_module_name": b.teacher_module for b in teacher.bindings})
    with captured(model.target, teacher.modules) as outputs:
        wanted = BOTH | (teacher.wanted & {"logits"})
        features = probe(model, teacher.input_size, wanted, f"{teacher.where}.input_size", device)
    for bound in teacher.bindings:
        if bound.teacher_module not in outputs:
            where = f"{bound.where}.teacher_module_name"
            raise SpecError(f"the teacher does not run its module {bound.teacher_module!r}", where=where)
    assert features.spatial is not None and features.summary is not None  # both were wanted
    rows, columns, width = features.spatial.shape[1:]
    factor, parameters = teacher.upsample_factor, sum(p.numel() for p in model.parameters())
    if teacher.upsampler_checkpoint:
        module = upsampler_module()
        parameters += module.parameter_count(module.read_for_teacher(teacher, width))
    return TeacherInfo(
        teacher.name,
        features.summary.shape[-1],
        width,
        model.logits_dim,
        model.stride / factor,
        (rows * factor, columns * factor),
        parameters,
        type(model).kind,
        model.native,
        {MODULE + name: tuple(model.as_named(output, (rows, columns)).shape[1:]) for name, output in outputs.items()},
        model.class_names,
    )


def check_weights(teacher: ResolvedTeacher) -> None:
    """Read all weights of the teacher and of its upsampler, and check that they fit, without keeping them.

    Raises:
        WeightsError: none are named, they cannot be read, or they belong to another architecture.
    """
    weights_of(teacher)
    for member in teacher.members:
        _structure(member).check(member)
    if teacher.upsampler_checkpoint:
        upsampler_module().load_upsampler(teacher.upsampler_checkpoint, upsampler_field(teacher))


def _structure(teacher: ResolvedTeacher) -> Adapter:
    """Build the teacher without weights and, if the adapter can, on the meta device."""
    kind = adapter_class(teacher)
    with on_meta() if kind.structure_without_weights else contextlib.nullcontext():
        return kind.build(teacher)


class FrozenTeacher(nn.Module):
    """A teacher with its weights loaded; of an ensemble the first member, with the others as submodules.

    Args:
        teacher: the teacher to build; weights are read from its local path.
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
        weights_of(teacher)  # raises if there are none
        with without_random_values():
            model = adapter_class(teacher).build(teacher)
        model.load(teacher)
        # Folding removes a BatchNorm from the graph and changes the output of the module before it.
        self.modules_wanted = teacher.modules
        self.model = model.eval() if self.modules_wanted else _folded(model.eval(), teacher.input_size)
        self.dtype = compute_dtype(teacher.service.precision, torch.device(device))
        if model.in_fp32 and teacher.service.precision is TeacherPrecision.auto:
            self.dtype = torch.float32
        self.register_buffer("mean", torch.tensor(teacher.norm_mean).view(1, 3, 1, 1) * 255)
        self.register_buffer("std", torch.tensor(teacher.norm_std).view(1, 3, 1, 1) * 255)
        self.model.requires_grad_(False).eval().to(self.dtype)
        self.upsampler = _upsampler(teacher)  # in fp32: it is small compared with the backbone
        self._enlarge = teacher.view_size == teacher.input_size
        self.to(device)
        if torch.device(device).type == "cpu":
            self.to(memory_format=torch.channels_last)
        compiles = teacher.service.compile and not self.modules_wanted  # a compiled graph skips hooks
        self._run = torch.compile(self.model, dynamic=False) if compiles else self.model

    def normalise_by(self, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        """Change the normalisation of images in [0, 1]."""
        for model in (self, *self.others):
            for buffer, values in ((model.mean, mean), (model.std, std)):
                buffer.copy_(torch.tensor(values).view(1, 3, 1, 1) * 255)

    @torch.no_grad()  # not inference_mode: compiled losses keep features for their backward pass
    def forward(self, images: torch.Tensor, wanted: frozenset[str]) -> Features:
        """Compute raw features in bf16 of uint8 ``[B, 3, H, W]``; only those in ``wanted``.

        Images of an upsampled teacher have its ``view_size``, ``upsample_factor`` times the backbone's input size.
        """
        own = self._answer(images, wanted)
        if self.others:
            own = mean_of([own, *(other._answer(images, wanted) for other in self.others)])
        return own.map(lambda t: t.to(torch.bfloat16))

    def _answer(self, images: torch.Tensor, wanted: frozenset[str]) -> Features:
        """Compute this member's features, not rounded yet."""
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
        """Normalise uint8 ``[B, 3, H, W]`` to fp32 for the backbone, on its device."""
        return (images.to(self.mean.device).float() - self.mean) / self.std

    @torch.no_grad()
    def encode(self, normalised: torch.Tensor) -> torch.Tensor:
        """Compute the backbone's own raw map, without an upsampler: normalised ``[B, 3, H, W]`` to fp32 ``[B, h, w,
        D]``."""
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
    """Resize ``[B, 3, H, W]`` to ``[B, 3, factor * H, factor * W]``, bicubic, if there is no finer image."""
    return F.interpolate(images, scale_factor=factor, mode="bicubic", align_corners=False)


def _upsampler(teacher: ResolvedTeacher) -> nn.Module | None:
    if not teacher.upsampler_checkpoint:
        return None
    describe(teacher)  # raises if the two do not belong together
    return upsampler_module().load_upsampler(teacher.upsampler_checkpoint, upsampler_field(teacher))


def _folded(model: Adapter, size: int) -> Adapter:
    """Fold BatchNorm into the convolutions before it, if there is any."""
    if not any(isinstance(m, _BatchNorm) for m in model.modules()):
        return model
    return fold_batch_norm(model, torch.zeros(1, 3, size, size))


def compute_dtype(precision: TeacherPrecision, device: torch.device) -> torch.dtype:
    """Return the dtype of a forward on ``device``; ``auto`` is bf16 if the hardware multiplies it, else fp32."""
    if precision is not TeacherPrecision.auto:
        return getattr(torch, DATA_TYPES[precision.value].torch_type)
    return torch.bfloat16 if has_native_bf16(device) else torch.float32


def has_native_bf16(device: torch.device) -> bool:
    """Return whether ``device`` multiplies bf16 matrices in hardware (on a CPU: AMX or AVX512-BF16)."""
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
