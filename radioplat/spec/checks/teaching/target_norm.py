"""Contradictions in how targets are transformed (``distill.target_norm``)."""

from __future__ import annotations

from collections.abc import Iterator

from radioplat.errors import Problem
from radioplat.spec.resolved.teacher import resolve_teachers
from radioplat.spec.schema.distill import TargetNormConfig, TargetNormFit
from radioplat.spec.schema.root import Spec

_SECTION = "distill.target_norm"


def target_norm_problems(spec: Spec) -> Iterator[Problem]:
    """What is wrong with ``target_norm`` and with teachers' ``spatial_norm_type``."""
    config, default = spec.distill.target_norm, TargetNormConfig()
    teachers = resolve_teachers(spec)
    for teacher, given in zip(teachers, spec.distill.teacher, strict=True):
        if given.spatial_norm_type is not None and "spatial" not in teacher.wanted:
            yield Problem(
                "this teacher's map is not distilled, so that there is nothing to transform",
                f"{teacher.where}.spatial_norm_type",
                "Take mode spatial or combo, or leave this unset.",
            )
    if not any(teacher.norms for teacher in teachers):
        for name in ("fit", "path"):
            if getattr(config, name) != getattr(default, name):
                hint = f"Set {_SECTION}.type, or leave this at its default."
                yield Problem("no target is transformed", f"{_SECTION}.{name}", hint)
    elif config.fit is TargetNormFit.running and config.path is not None:
        yield Problem(
            "what is measured while a student trains is its own, and no other run's",
            f"{_SECTION}.path",
            "Take fit: before, or leave this unset.",
        )
