"""Checks of ``distill.students``: several students that learn from one pass of the teachers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from radioplat.errors import Problem
from radioplat.spec.loading.students import STUDENTS
from radioplat.spec.schema.cluster import ClusterMode
from radioplat.spec.schema.distill import StudentConfig, StudentPlacement
from radioplat.spec.schema.model import ModelTask
from radioplat.spec.schema.root import Spec

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
# Fields of `train` that a student may have for itself. All others say how the workers of all students run.
OWN_TRAIN = (
    "seed",
    "regularizer",
    "keep_last",
    "keep_best",
    "keep_every",
    "pretrained_model_path",
    "pretrained_strict",
    "precision",
    "clip_grad_norm",
    "enable_ema",
    "ema_decay",
    "optim",
    "engine",
    "zero_stage",
    "offload",
    "grad_checkpointing",
    "compile",
    "damp",
    "non_finite",
    "max_non_finite_steps",
    "spike",
    "hooks",
)
# Fields of `distill` that all students have in common: what the teachers are asked, and what follows.
COMMON_DISTILL = ("teacher", "students", "placement", "scheme", "partitions", "stages", "then", "results_dir")


def students_problems(spec: Spec) -> Iterator[Problem]:
    """Yield problems of the list itself; those of a student's own spec are its own."""
    students = spec.distill.students
    spread = spec.distill.placement is StudentPlacement.spread
    if spread and len(students) < 2:
        hint = "List them in distill.students, or leave distill.placement out."
        yield Problem("workers of their own are for several students", "distill.placement", hint)
    if spread and spec.cluster.mode is not ClusterMode.ray:
        hint = "Set cluster.mode: ray, or distill.placement: together."
        yield Problem("workers of their own run on a Ray cluster", "distill.placement", hint)
    if not students:
        return
    if spec.model.task is not ModelTask.features:
        yield Problem("several students learn features; a detector is trained alone", STUDENTS)
    if spec.train.resume_training_checkpoint_path:
        where, hint = "train.resume_training_checkpoint_path", "Set a student's own train.pretrained_model_path."
        yield Problem("several students cannot go on from one checkpoint", where, hint)
    counts = Counter(student.name for student in students)
    for place, student in enumerate(students):
        where = f"{STUDENTS}[{place}]"
        if not _NAME.fullmatch(str(student.name)):
            hint = "Letters, digits, '.', '_' and '-': it is the name of a folder."
            yield Problem(f"{student.name!r} cannot be the name of a student", f"{where}.name", hint)
        elif counts[student.name] > 1:
            yield Problem(f"{counts[student.name]} students are called {student.name}", f"{where}.name")
        yield from _common_fields(student, where)


def _common_fields(student: StudentConfig, where: str) -> Iterator[Problem]:
    """Yield the fields that a student cannot have for itself."""
    for field in student.train:
        if field not in OWN_TRAIN:
            hint = f"Set train.{field} for all. A student may have its own {', '.join(OWN_TRAIN)}."
            yield Problem("it is common to all students", f"{where}.train.{field}", hint)
    for field in student.distill:
        if field in COMMON_DISTILL:
            yield Problem("it is common to all students", f"{where}.distill.{field}", f"Set distill.{field} for all.")
    if "task" in student.model:
        yield Problem("it is common to all students", f"{where}.model.task", "Set model.task for all.")
