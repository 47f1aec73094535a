"""The models of an evaluation, in any process: the trained student, its untrained self, and the teachers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from radioplat.evaluate.encoder import Encoder, student_encoder
from radioplat.evaluate.remembered import teacher_encoders
from radioplat.models.norm_fold import fold_head
from radioplat.models.start import start_student
from radioplat.models.student import Student
from radioplat.spec.resolve import ResolvedTeacher, asked_teachers
from radioplat.spec.root import Spec

TRAINED, UNTRAINED = "student", "untrained student"


@dataclass(frozen=True)
class Subject:
    """A model under measurement.

    Attributes:
        size: side of the view it sees, in pixels.
        student: its heads are compared with the teachers; None for a teacher.
        resolution_of: the subject of which this is another resolution. It takes part in what is measured at each
            resolution only: kNN, fidelity and agreement.
    """

    encode: Encoder
    size: int
    student: Student | None
    resolution_of: str | None = None


@contextlib.contextmanager
def subjects_of(spec: Spec, student: Student, device: str) -> Iterator[dict[str, Subject]]:
    """Everything that ``spec`` has measured beside ``student``, by name.

    On leaving, what ``feature_cache`` learnt of the teachers is written.

    Raises:
        SpecError, WeightsError: the cache's folder cannot be used, or weights cannot be read.
    """
    student = _folded(student).to(device)
    size, encode = size_of(spec, student), student_encoder(student)
    subjects = {TRAINED: Subject(encode, size, student)}
    for other in sorted(set(spec.evaluate.resolutions) - {size}):
        subjects[f"{TRAINED} at {other}"] = Subject(encode, other, student, TRAINED)
    if spec.evaluate.baseline:
        fresh = _folded(start_student(spec, student.architecture)).to(device)
        subjects[UNTRAINED] = Subject(student_encoder(fresh), size, fresh)
    teachers = teachers_of(spec, student)
    with teacher_encoders(spec, teachers, device) as encoders:
        yield subjects | {t.name: Subject(encoders[t.name], t.view_size, None) for t in teachers}


def size_of(spec: Spec, student: Student) -> int:
    """Pixels a side at which the student is judged."""
    return spec.dataset.val_img_size or student.architecture.img_size


def teachers_of(spec: Spec, student: Student) -> list[ResolvedTeacher]:
    """Teachers that the student has a head for."""
    return [t for t in asked_teachers(spec) if t.name in student.head_names]


def _folded(student: Student) -> Student:
    """The same function; a matrix behind a head (PHI-S, whitening) costs more at each position than the head itself."""
    for head in student.heads.values():
        fold_head(head, mean=False)
    return student
