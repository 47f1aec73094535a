"""The specs of the students of ``distill.students``: each is that of a run of this student alone."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from radioplat.errors import Problem, SpecError
from radioplat.spec.loading.load import load_spec, spec_tree
from radioplat.spec.resolved.teacher import resolve_teachers
from radioplat.spec.schema.distill import StudentConfig, StudentPlacement
from radioplat.spec.schema.root import Spec

STUDENTS = "distill.students"
FOLDER = "students"  # in the results folder
_SECTIONS = ("model", "train", "distill")


def student_specs(spec: Spec) -> dict[str, Spec]:
    """Return the spec of each student by name; {} for a run of one student.

    A student's fields replace those of the spec; a part of the spec that names its ``type``, such as a backbone, is
    replaced whole if the student names another. Its ``results_dir`` is ``<results_dir>/students/<name>``, and index and
    feature cache are those of all.

    Raises:
        SpecError: with the problems of all students, by field.
    """
    problems: list[Problem] = []
    specs: dict[str, Spec] = {}
    for place, student in enumerate(spec.distill.students):
        try:
            specs[student.name] = _spec(spec, student)
        except SpecError as error:
            problems += (own_problem(student, place, problem) for problem in error.problems)
    if problems:
        raise SpecError(*dict.fromkeys(problems))
    return specs


def own_problem(student: StudentConfig, place: int, problem: Problem) -> Problem:
    """Return a problem of a student's spec with the place of its field in the spec of all.

    Args:
        place: of the student in the list.
    """
    section, _, rest = problem.where.partition(".")
    first = rest.partition(".")[0].partition("[")[0]
    if problem.where == "dataset.img_size" and student.img_size is not None:
        return Problem(problem.message, f"{STUDENTS}[{place}].img_size", problem.hint)
    if section in _SECTIONS and first in getattr(student, section):
        return Problem(problem.message, f"{STUDENTS}[{place}].{problem.where}", problem.hint)
    return problem


def _spec(spec: Spec, student: StudentConfig) -> Spec:
    tree = spec_tree(spec)
    tree["distill"] |= {"students": [], "placement": StudentPlacement.together, "results_dir": None}
    home = Path(spec.results_dir) / FOLDER / student.name
    tree["results_dir"] = str(home)
    tree["dataset"]["index_dir"] = spec.dataset.index_dir or str(Path(spec.results_dir) / "index")
    for section in _SECTIONS:
        tree[section] = _replaced(tree[section], getattr(student, section))
    if student.img_size is not None:
        _at_size(tree, spec, student.img_size)
    if spec.train.checkpoint_dir is not None:
        tree["train"]["checkpoint_dir"] = f"{spec.train.checkpoint_dir.rstrip('/')}/{FOLDER}/{student.name}"
    if spec.wandb.enable or spec.train.trackers:
        tree["wandb"] |= {"group": spec.wandb.group or os.path.basename(os.path.abspath(spec.results_dir))}
        tree["wandb"]["name"] = "/".join(filter(None, [spec.wandb.name, student.name]))
        tree["wandb"]["id"] = spec.wandb.id and f"{spec.wandb.id}-{student.name}"
    return load_spec(tree)


def _at_size(tree: dict[str, Any], spec: Spec, size: int) -> None:
    """Let the student of ``tree`` see images of ``size``, and its teachers those that they see in ``spec``."""
    tree["dataset"]["img_size"] = size
    for teacher, resolved in zip(tree["distill"]["teacher"], resolve_teachers(spec), strict=True):
        if not resolved.inside:
            teacher |= {"input_size": resolved.input_size, "match_student_resolution": False}


def _replaced(present: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``present`` with the fields of ``own``."""
    merged = copy.deepcopy(dict(present))
    for key, value in own.items():
        before = merged.get(key)
        nested = isinstance(before, dict) and isinstance(value, Mapping)
        if nested and isinstance(before, dict) and value.get("type", before.get("type")) == before.get("type"):
            merged[key] = _replaced(before, value)
        else:
            merged[key] = copy.deepcopy(value)
    return merged
