"""Checks of the transforms of targets, ``distill.target_norm``."""

from __future__ import annotations

from collections.abc import Iterator

from radioplat.errors import Problem
from radioplat.spec.checks.unused_fields import unused_fields
from radioplat.spec.resolved.teacher import resolve_teachers
from radioplat.spec.schema.distill import TargetNormFit
from radioplat.spec.schema.root import Spec

_SECTION = "distill.target_norm"


def target_norm_problems(spec: Spec) -> Iterator[Problem]:
    """Yield problems of ``target_norm`` and of the teachers' ``spatial_norm_type``."""
    config = spec.distill.target_norm
    teachers = resolve_teachers(spec)
    for teacher, given in zip(teachers, spec.distill.teacher, strict=True):
        if given.spatial_norm_type is not None and "spatial" not in teacher.wanted:
            yield Problem(
                "this teacher's feature map is not distilled",
                f"{teacher.where}.spatial_norm_type",
                "Take mode spatial or combo, or leave this unset.",
            )
    if not any(teacher.norms for teacher in teachers):
        hint = f"Set {_SECTION}.type, or leave this at its default."
        yield from unused_fields(config, ("fit", "path"), _SECTION, "no target is transformed", hint)
    elif config.fit is TargetNormFit.running and config.path is not None:
        message, hint = "running statistics are not read from a file", "Take fit: before, or leave this unset."
        yield Problem(message, f"{_SECTION}.path", hint)
