"""The side in pixels at which a student is evaluated."""

from __future__ import annotations

from collections.abc import Iterator

from radioplat.errors import Problem, RadioplatError, problems_of
from radioplat.models.on_meta import on_meta
from radioplat.models.probe import probe
from radioplat.models.student.architecture import StudentArchitecture
from radioplat.models.student.student import Student
from radioplat.spec.schema.root import Spec


def student_size(spec: Spec, architecture: StudentArchitecture) -> int:
    """Return ``dataset.val_img_size``, or the student's training resolution."""
    return spec.dataset.val_img_size or architecture.img_size


def size_problems(architecture: StudentArchitecture, sizes: dict[str, int]) -> Iterator[Problem]:
    """Yield a problem for each size in pixels, by its field, that a student of ``architecture`` does not accept."""
    try:
        with on_meta():
            student = Student(architecture)
    except RadioplatError:
        return  # checks of the student report it
    backbone = student.backbone
    for where, size in sizes.items():
        if backbone.needs_multiple and size % student.stride:
            hint = f"Take {max(1, round(size / student.stride)) * student.stride}."
            yield Problem(f"{size} is not a multiple of the student's patch {student.stride}", where, hint)
            continue
        yield from problems_of(probe, backbone, size, frozenset({"summary", "spatial"}), where)
