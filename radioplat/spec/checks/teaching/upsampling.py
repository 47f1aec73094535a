"""Checks of the upsampling of teachers' feature maps."""

from __future__ import annotations

from collections.abc import Iterator

from radioplat.errors import Problem
from radioplat.spec.checks.unused_fields import unknown_teacher, unused_fields
from radioplat.spec.resolved.teacher import resolve_teachers, teacher_names
from radioplat.spec.schema.root import Spec
from radioplat.spec.schema.upsampler import FACTORS, FEATSHARP


def upsampled_teachers(spec: Spec) -> Iterator[Problem]:
    """Yield problems of ``adaptor`` and the fields that belong to it."""
    for i, teacher in enumerate(spec.distill.teacher):
        where = f"distill.teacher[{i}]"
        if teacher.adaptor is None:
            hint, names = f"Set {where}.adaptor: {FEATSHARP}.", ("upsample_factor", "upsampler_checkpoint")
            yield from unused_fields(teacher, names, where, "this teacher's map is not upsampled", hint)
        elif teacher.adaptor != FEATSHARP:
            yield Problem(f"unknown adaptor {teacher.adaptor!r}", f"{where}.adaptor", f"Valid: {FEATSHARP}.")
        elif teacher.do_upsample:
            yield from _featsharp(spec, i)


def _featsharp(spec: Spec, i: int) -> Iterator[Problem]:
    teacher, where = spec.distill.teacher[i], f"distill.teacher[{i}]"
    yield from _factor(teacher.upsample_factor, where)
    if not teacher.upsampler_checkpoint:
        hint = "Give the upsampler.safetensors that radioplat train_upsampler wrote."
        yield Problem("an upsampler needs trained weights", f"{where}.upsampler_checkpoint", hint)
    if "spatial" not in resolve_teachers(spec)[i].wanted:
        hint = "Take mode spatial or combo, or no adaptor."
        yield Problem("this teacher's feature map is not distilled", f"{where}.adaptor", hint)


def _factor(factor: int, where: str) -> Iterator[Problem]:
    if factor not in FACTORS:
        hint = "Take the factor that the upsampler was trained for."
        yield Problem(f"the factor must be 2 or 4, not {factor}", f"{where}.upsample_factor", hint)


def upsampler_training(spec: Spec) -> Iterator[Problem]:
    """Yield problems of task ``train_upsampler``; the teacher may already name the upsampler that it will write."""
    config, section = spec.train_upsampler, "train_upsampler"
    names = teacher_names(spec.distill.teacher)
    if config.teacher is not None and config.teacher not in names:
        yield from unknown_teacher(config.teacher, names, f"{section}.teacher")
    elif config.teacher is None and len(names) > 1:
        yield Problem("there is more than one teacher", f"{section}.teacher", f"Name one of {', '.join(names)}.")
    elif any(t.inside or t.ensemble for t in resolve_teachers(spec) if config.teacher in (None, t.name)):
        hint = "Name a teacher with pretrained_teacher_model_path."
        yield Problem("an upsampler is trained for one set of frozen weights", f"{section}.teacher", hint)
    if config.window % 2 == 0:
        yield Problem(f"the side must be odd, not {config.window}", f"{section}.window")
    if config.width % config.heads:
        yield Problem(f"{config.heads} heads do not divide a width of {config.width}", f"{section}.heads")
    wanted = config.upsample_factor
    if wanted is not None:
        yield from _factor(wanted, section)
    for i, name in enumerate(names):
        factor = spec.distill.teacher[i].upsample_factor
        if name != config.teacher and len(names) > 1 or factor == 1:
            continue
        yield from _factor(factor, f"distill.teacher[{i}]")
        if wanted in FACTORS and factor in FACTORS and wanted != factor:
            message = f"{wanted}, and distill.teacher[{i}].upsample_factor is {factor}"
            yield Problem(message, f"{section}.upsample_factor", "Leave this unset.")
