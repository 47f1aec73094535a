"""The objective of a run, with the student's starting weights and everything that trains beside it."""

from __future__ import annotations

from radioplat.design.detector import detect_objective
from radioplat.design.run import Run, build_peers, build_student
from radioplat.models.student.student import Student
from radioplat.objectives.distill import ClassifyObjective, DistillObjective
from radioplat.objectives.objective import Objective


def build_objective(run: Run) -> Objective:
    """Distillation, training on labels or detection, as the run asks for; equal on every rank, on the CPU."""
    student, view, config = build_student(run), run.student_view, run.spec.distill
    if run.detector is not None:
        return detect_objective(student, view, run.teachers, run.binding_widths, config, run.spec.train.seed)
    assert isinstance(student, Student)
    if run.task == "distill":
        return DistillObjective(student, run.teachers, view, config, build_peers(run))
    return ClassifyObjective(student, view)
