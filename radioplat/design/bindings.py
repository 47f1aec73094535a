"""Check bindings between modules of teachers and student, and add the projections that they need."""

from __future__ import annotations

import dataclasses

from radioplat.errors import Problem, SpecError
from radioplat.models.capture import as_features, captured, require_modules
from radioplat.models.on_meta import on_meta
from radioplat.models.probe import probe
from radioplat.models.student.architecture import StudentArchitecture
from radioplat.models.student.student import build_backbone
from radioplat.spec.resolved.losses import definition_of
from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.teachers.base.info import TeacherInfo


def with_projections(
    architecture: StudentArchitecture, teachers: list[ResolvedTeacher], infos: dict[str, TeacherInfo]
) -> StudentArchitecture:
    """Return ``architecture`` with a projection for each binding between modules of different width.

    Raises:
        SpecError: one problem for each binding to a module that the student lacks or does not run, or between a vector
            and a map.
    """
    bound = [(t, b) for t in teachers for b in t.bindings]
    if not bound:
        return architecture
    with on_meta():
        backbone = build_backbone(architecture)
    require_modules(backbone.target, {f"{b.where}.student_module_name": b.student_module for _, b in bound})
    size = architecture.img_size
    with captured(backbone.target, sorted({b.student_module for _, b in bound})) as outputs:
        probe(backbone, size, frozenset({"summary", "spatial"}), "dataset.img_size")
    problems = []
    grid = size // backbone.stride, size // backbone.stride
    projections: dict[str, list[tuple[str, int, int]]] = {}
    for teacher, binding in bound:
        if binding.student_module not in outputs:
            message = f"the student does not run its module {binding.student_module!r}"
            problems.append(Problem(message, f"{binding.where}.student_module_name"))
            continue
        student_shape = as_features(outputs[binding.student_module], grid).shape[1:]
        teacher_shape = infos[teacher.name].named[binding.key]
        if len(student_shape) != len(teacher_shape):
            kinds = {1: "a vector", 3: "a map"}
            message = f"{kinds[len(student_shape)]} of the student against {kinds[len(teacher_shape)]} of the teacher"
            problems.append(Problem(message, binding.where, "Name modules that give the same kind of features."))
        elif len(student_shape) == 1 and definition_of(binding.loss).maps_only:
            message = f"{binding.loss.value} compares maps, and these modules give vectors"
            problems.append(Problem(message, f"{binding.where}.criterion", "Take another loss."))
        elif student_shape[-1] != teacher_shape[-1]:
            projections.setdefault(teacher.name, []).append((binding.name, student_shape[-1], teacher_shape[-1]))
    if problems:
        raise SpecError(*problems)
    heads = tuple(dataclasses.replace(h, bindings=tuple(projections.get(h.name, ()))) for h in architecture.heads)
    return dataclasses.replace(architecture, heads=heads)
