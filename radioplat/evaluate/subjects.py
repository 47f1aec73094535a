"""The models of an evaluation, in any process: the trained student, its untrained self, and the teachers."""

from __future__ import annotations

from dataclasses import dataclass

from radioplat.evaluate.encoder import Encoder, student_encoder, teacher_encoder
from radioplat.models.start import start_student
from radioplat.models.student import Student
from radioplat.spec.resolve import ResolvedTeacher, resolve_teachers
from radioplat.spec.root import Spec
from radioplat.teachers.teacher import FrozenTeacher

TRAINED, UNTRAINED = "student", "untrained student"


@dataclass(frozen=True)
class Subject:
    """A model under measurement.

    Attributes:
        size: side of the view it sees, in pixels.
        student: its heads are compared with the teachers; None for a teacher.
        resolution_of: the subject of which this is another resolution. It sees held-out images alone, and takes part in
            what is measured at each resolution only.
    """

    encode: Encoder
    size: int
    student: Student | None
    resolution_of: str | None = None


def build_subjects(spec: Spec, student: Student, device: str) -> dict[str, Subject]:
    """Everything that ``spec`` has measured beside ``student``, by name.

    Raises:
        WeightsError: weights cannot be read.
    """
    student = student.to(device)
    size, encode = size_of(spec, student), student_encoder(student)
    subjects = {TRAINED: Subject(encode, size, student)}
    for other in sorted(set(spec.evaluate.resolutions) - {size}):
        subjects[f"{TRAINED} at {other}"] = Subject(encode, other, student, TRAINED)
    if spec.evaluate.baseline:
        fresh = start_student(spec, student.architecture).to(device)
        subjects[UNTRAINED] = Subject(student_encoder(fresh), size, fresh)
    for teacher in teachers_of(spec, student):
        subjects[teacher.name] = Subject(teacher_encoder(FrozenTeacher(teacher, device)), teacher.view_size, None)
    return subjects


def size_of(spec: Spec, student: Student) -> int:
    """Pixels a side at which the student is judged."""
    return spec.dataset.val_img_size or student.architecture.img_size


def teachers_of(spec: Spec, student: Student) -> list[ResolvedTeacher]:
    """Teachers that the student has a head for."""
    return [t for t in resolve_teachers(spec) if t.name in student.head_names]
