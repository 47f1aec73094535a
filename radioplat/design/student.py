"""Checks of the student's structure against sizes, teachers and machine; preparation of the student for training."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from radioplat.cluster.ray_cluster import uses_ray
from radioplat.design.memory import parameter_bytes
from radioplat.design.quantized import quantized_problems
from radioplat.errors import PlacementError, Problem, SpecError, problems_of
from radioplat.models.backbones.radio_1d import Radio1D
from radioplat.models.backbones.radio_vit import RadioViT
from radioplat.models.backbones.timm_backbone import TimmBackbone
from radioplat.models.backbones.vitdet import SIZES, Windows, design_windows
from radioplat.models.modifiers.damp import add_weight_noise
from radioplat.models.on_meta import on_meta
from radioplat.models.student.architecture import StudentArchitecture
from radioplat.models.student.student import Student
from radioplat.objectives.compiled import compile_options
from radioplat.spec.checks.tasks.training_task import is_taught
from radioplat.spec.resolved.precision import precision_of
from radioplat.spec.schema.model import CpeCrop
from radioplat.spec.schema.root import Spec
from radioplat.spec.schema.train import Precision
from radioplat.teachers.base.teacher import has_native_bf16

LARGEST_CARD = 288 * 2**30  # bytes: assumed maximum of a cluster's GPU, if this machine has none


def build_on_meta(architecture: StudentArchitecture) -> Student:
    """Build a student on the meta device.

    Raises:
        SpecError: it cannot be built, for example because the size of a tensor overflows.
    """
    try:
        with on_meta():
            return Student(architecture)
    except RuntimeError as error:
        message = f"no head of this width can be built: {str(error).splitlines()[0]}"
        raise SpecError(message, where="distill.mlp_hidden_size") from None


def student_problems(spec: Spec, task: str, student: Student, sizes: Mapping[int, str]) -> Iterator[Problem]:
    """Yield settings that do not work with the student's structure.

    Args:
        student: on the meta device.
        sizes: pixels a side of its inputs, each with the spec field that sets it.
    """
    if is_taught(task):
        yield from _windows(spec, student, sizes)
        if len(student.heads) == len(spec.distill.teacher):  # else a teacher is invalid, and indices would be wrong
            yield from _token_slots(student)
            yield from _widths(spec, student)
    if not spec.model.backbone.cpe and not isinstance(student.backbone, RadioViT):
        hint = "Take a radio_vit_... or c_radio_... student, or leave it out."
        yield Problem("only a RADIO ViT has cropped position embeddings", "model.backbone.cpe", hint)
    if spec.model.backbone.position_dropout and not isinstance(student.backbone, RadioViT):
        where = "model.backbone.position_dropout"
        yield Problem("only a RADIO ViT drops positions", where, "Take a radio_vit_... or c_radio_... student, or 0.")
    if spec.model.backbone.freeze_norm and not student.freeze_norm():
        yield Problem("this backbone has no normalization layers", "model.backbone.freeze_norm", "Set it to false.")
    if spec.train.grad_checkpointing:
        yield from problems_of(student.backbone.set_grad_checkpointing)
    if spec.train.compile:
        yield from _moving_statistics(spec, student)
    yield from quantized_problems(spec, student)


def has_batchnorm(student: Student) -> bool:
    """Return whether the backbone has BatchNorm."""
    return any(isinstance(module, _BatchNorm) for module in student.backbone.modules())


def prepare_student(student: Student, spec: Spec, task: str) -> Student:
    """Freeze layers, set memory format and ViTDet windows, add weight noise and compile, as in the spec.

    Parameters keep their names.
    """
    backbone = spec.model.backbone
    if isinstance(student.backbone, TimmBackbone):
        student.backbone.channels_last = student.backbone.gains_from_channels_last
    if backbone.freeze_backbone:
        student.backbone.requires_grad_(False)
        own = getattr(student.backbone, "classifier_prefix", ())  # timm has the classifier inside its model
        for name, parameter in student.backbone.named_parameters():
            parameter.requires_grad_(name.removeprefix("model.").startswith(own) if own else False)
    if backbone.freeze_norm:
        student.freeze_norm()
    if isinstance(student.backbone, RadioViT):
        positions = student.backbone.patch_generator
        positions.crops_positions, positions.position_dropout = backbone.cpe, backbone.position_dropout
        positions.crop_sides = backbone.cpe_crop is CpeCrop.sides
    if spec.train.grad_checkpointing:
        student.backbone.set_grad_checkpointing()
    if spec.train.damp:
        add_weight_noise(student.backbone, spec.train.damp)
    if is_taught(task) and spec.distill.vitdet.prob > 0 and isinstance(student.backbone, RadioViT):
        student.backbone.windows = windows_of(spec, student.backbone)
    if spec.train.compile:
        compile_backbone(student.backbone)
    return student


def compile_backbone(backbone: nn.Module, backend: str = "inductor") -> None:
    """Compile in place, so that names do not change; random numbers are those of the uncompiled module."""
    backbone.compile(**compile_options(backend))


def windows_of(spec: Spec, backbone: RadioViT) -> Windows:
    """Return the windows of ``distill.vitdet``."""
    config = spec.distill.vitdet
    depth = len(backbone.blocks)
    return design_windows(config.prob, config.window_sizes, depth, config.num_global, config.num_windowed)


def compiler_problems(spec: Spec, on_gpus: bool) -> Iterator[Problem]:
    """Yield reasons why workers cannot compile the student, by what they are and not by what this process runs on.

    Args:
        on_gpus: the workers have GPUs; else they are taken to be like this machine.
    """
    if not spec.train.compile or on_gpus:
        return
    if precision_of(spec.train) is Precision.bf16 and not has_native_bf16(torch.device("cpu")):
        hint = "Take fp32, or set train.compile: false."
        yield Problem("bf16 emulated on this CPU cannot be compiled", "train.compile", hint)
    if not _cpp_compiler():
        yield Problem("torch.compile needs a C++ compiler here", "train.compile", "Install g++, or set it to false.")


def _moving_statistics(spec: Spec, student: Student) -> Iterator[Problem]:
    moving = any(isinstance(m, _BatchNorm) and m.track_running_stats for m in student.backbone.modules())
    if moving and not spec.model.backbone.freeze_norm:
        # BatchNormStatistics restores them within the step; a compiled backward needs the values of its forward.
        hint = "Set model.backbone.freeze_norm: true, or this to false."
        yield Problem("the statistics of this backbone's BatchNorm cannot be compiled", "train.compile", hint)


def _windows(spec: Spec, student: Student, sizes: Mapping[int, str]) -> Iterator[Problem]:
    config, where = spec.distill.vitdet, "distill.vitdet"
    if not config.prob > 0:
        return
    if not isinstance(student.backbone, RadioViT):
        hint = "Take a radio_vit_... or c_radio_... student, or prob: 0."
        yield Problem("only a RADIO ViT has windows", f"{where}.prob", hint)
        return
    if isinstance(student.backbone, Radio1D):
        yield Problem("the blocks of a radio1d_vit_* are never windowed", f"{where}.prob", "Set it to 0.")
        return
    windows = windows_of(spec, student.backbone)
    if len(windows.global_layers) == len(student.backbone.blocks):
        most, by_number = len(student.backbone.blocks) // 2, config.num_windowed is None
        hint = f"Take a num_global of at most {most}, or set prob: 0." if most and by_number else "Set prob: 0."
        name = "num_global" if by_number else "num_windowed"
        yield Problem("no block would be windowed", f"{where}.{name}", hint)
        return
    sides = sorted({size // student.stride for size in sizes if size % student.stride == 0})
    fitting = {size for side in sides for size in windows.fitting(side, side)}
    maps = " or ".join(f"{side} x {side}" for side in sides)
    possible = sorted({s for side in sides for s in range(2, side) if side % s == 0})
    hint = f"Possible sizes: {', '.join(map(str, possible))}." if possible else "Set prob: 0."
    for i, size in enumerate(config.window_sizes):
        if size not in fitting:
            message = f"windows of {size} x {size} do not divide the student's map of {maps} patches"
            yield Problem(message, f"{where}.window_sizes[{i}]", hint)
    if not config.window_sizes and not fitting:
        message = f"no window size from {SIZES[0]} to {SIZES[-1]} divides the student's map of {maps} patches"
        yield Problem(message, f"{where}.window_sizes", hint)


def _token_slots(student: Student) -> Iterator[Problem]:
    architecture = student.architecture
    radio = isinstance(student.backbone, RadioViT)
    count = architecture.num_class_tokens if radio else 1
    for i, head in enumerate(architecture.heads):
        if head.token_slot < count or (not radio and head.token_slot == i):
            continue
        reason = f"the student has {count} class token(s), numbered from 0" if radio else "this student has one summary"
        where = f"distill.teacher[{i}].summary_token_idx"
        yield Problem(f"there is no class token {head.token_slot}: {reason}", where)


def _widths(spec: Spec, student: Student) -> Iterator[Problem]:
    """Yield heads that alone need more memory than a worker has: weights, gradients, moments and EMA."""
    available, each = _memory(spec), parameter_bytes(spec.train, spec.worker_bounds[0])
    for i, (name, head) in enumerate(student.heads.items()):
        needed = each.of(sum(p.numel() for p in head.parameters()))
        if needed > available:
            message = (
                f"the head of {name} takes {needed / 2**30:,.0f} GiB for its weights, their gradients and the "
                f"optimizer, and a worker has {available / 2**30:,.0f}"
            )
            own = spec.distill.teacher[i].spatial_num_inner
            where = f"distill.teacher[{i}].spatial_num_inner" if own else "distill.mlp_hidden_size"
            yield Problem(message, where, "Lower distill.mlp_hidden_size or the number of inner blocks.")


def _memory(spec: Spec) -> int:
    """Return the maximum memory of a worker, in bytes."""
    if torch.cuda.is_available():
        return max(torch.cuda.get_device_properties(i).total_memory for i in range(torch.cuda.device_count()))
    try:
        elsewhere = uses_ray(spec)
    except PlacementError:
        elsewhere = False
    here = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(here, LARGEST_CARD) if elsewhere else here


def _cpp_compiler() -> str | None:
    return next((c for c in (os.environ.get("CXX"), "g++", "clang++") if c and shutil.which(c)), None)
