"""Contradictions in what makes teachers' maps finer."""

from __future__ import annotations

from collections.abc import Iterator

from radioplat.errors import Problem
from radioplat.spec.resolved.teacher import resolve_teachers, teacher_names
from radioplat.spec.schema.root import Spec
from radioplat.spec.schema.upsampler import FACTORS, FEATSHARP


def upsampled_teachers(spec: Spec) -> Iterator[Problem]:
    """What is wrong with ``adaptor`` and the fields beside it."""
    for i, teacher in enumerate(spec.distill.teacher):
        where = f"distill.teacher[{i}]"
        if teacher.adaptor is None:
            for name, default in (("upsample_factor", 1), ("upsampler_checkpoint", None)):
                if getattr(teacher, name) != default:
                    hint = f"Set {where}.adaptor: {FEATSHARP}, or leave this at its default."
                    yield Problem("nothing upsamples this teacher's map", f"{where}.{name}", hint)
        elif teacher.adaptor != FEATSHARP:
            yield Problem(f"unknown adaptor {teacher.adaptor!r}", f"{where}.adaptor", f"Valid: {FEATSHARP}.")
        elif teacher.do_upsample:
            yield from _featsharp(spec, i)


def _featsharp(spec: Spec, i: int) -> Iterator[Problem]:
    teacher, where = spec.distill.teacher[i], f"distill.teacher[{i}]"
    if teacher.upsample_factor not in FACTORS:
        yield Problem(
            f"a map is made 2 or 4 times finer, not {teacher.upsample_factor}",
            f"{where}.upsample_factor",
            "Take what the upsampler was trained for.",
        )
    if not teacher.upsampler_checkpoint:
        yield Problem(
            "an upsampler needs trained weights",
            f"{where}.upsampler_checkpoint",
            "Give the upsampler.safetensors that radioplat train_upsampler wrote.",
        )
    if "spatial" not in resolve_teachers(spec)[i].wanted:
        yield Problem(
            "this teacher's map is not distilled, so that there is nothing to upsample",
            f"{where}.adaptor",
            "Take mode spatial or combo, or no adaptor.",
        )


def upsampler_training(spec: Spec) -> Iterator[Problem]:
    """What is wrong for the task ``train_upsampler``; the teacher may name already what it will write."""
    config, section = spec.train_upsampler, "train_upsampler"
    names = teacher_names(spec.distill.teacher)
    if config.teacher is not None and config.teacher not in names:
        hint = f"Teachers: {', '.join(names) or 'none'}."
        yield Problem(f"no teacher is called {config.teacher!r}", f"{section}.teacher", hint)
    elif config.teacher is None and len(names) > 1:
        yield Problem("there is more than one teacher", f"{section}.teacher", f"Name one of {', '.join(names)}.")
    elif any(t.inside or t.ensemble for t in resolve_teachers(spec) if config.teacher in (None, t.name)):
        hint = "Name a teacher with pretrained_teacher_model_path."
        yield Problem("an upsampler is trained for one set of frozen weights", f"{section}.teacher", hint)
    if config.window % 2 == 0:
        yield Problem(f"a window has an odd side, not {config.window}", f"{section}.window")
    if config.width % config.heads:
        yield Problem(f"{config.heads} heads do not divide a width of {config.width}", f"{section}.heads")
    yield from _factor(spec, names)


def _factor(spec: Spec, names: list[str]) -> Iterator[Problem]:
    config, where = spec.train_upsampler, "train_upsampler.upsample_factor"
    asked = config.upsample_factor
    if asked is not None and asked not in FACTORS:
        yield Problem(f"a map is made 2 or 4 times finer, not {asked}", where)
    for i, name in enumerate(names):
        said = spec.distill.teacher[i].upsample_factor
        if name != config.teacher and len(names) > 1 or said == 1:
            continue
        if said not in FACTORS:
            yield Problem(f"a map is made 2 or 4 times finer, not {said}", f"distill.teacher[{i}].upsample_factor")
        elif asked in FACTORS and asked != said:
            hint = "Leave this unset."
            yield Problem(f"{asked}, and distill.teacher[{i}].upsample_factor is {said}", where, hint)
