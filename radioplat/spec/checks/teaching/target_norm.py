"""Checks of the transforms of targets, ``distill.target_norm``."""

from __future__ import annotations

from collections.abc import Iterator

from radioplat.errors import Problem
from radioplat.spec.checks.unused_fields import unused_fields
from radioplat.spec.resolved.teacher import resolve_teachers
from radioplat.spec.schema.distill import TargetNormFit, TargetNormType
from radioplat.spec.schema.root import Spec

_SECTION = "distill.target_norm"


def target_norm_problems(spec: Spec) -> Iterator[Problem]:
    """Yield problems of ``target_norm`` and of the teachers' own types."""
    config = spec.distill.target_norm
    teachers = resolve_teachers(spec)
    for teacher, given in zip(teachers, spec.distill.teacher, strict=True):
        for kind, name in (("spatial", "feature map"), ("summary", "summary")):
            field = f"{kind}_norm_type"
            if getattr(given, field) is not None and kind not in teacher.wanted:
                hint = f"Take mode {kind} or combo, or leave this unset."
                yield Problem(f"this teacher's {name} is not distilled", f"{teacher.where}.{field}", hint)
    measured = {norm for teacher in teachers for norm in teacher.norms.values()} - {TargetNormType.layer_norm}
    if not measured:
        hint = f"Set {_SECTION}.type, or leave this at its default."
        fields = ("fit", "path", "both_sides")
        yield from unused_fields(config, fields, _SECTION, "no target's statistics are measured", hint)
    elif config.fit is not TargetNormFit.before and config.path is not None:
        message, hint = "running statistics are not read from a file", "Take fit: before, or leave this unset."
        yield Problem(message, f"{_SECTION}.path", hint)
