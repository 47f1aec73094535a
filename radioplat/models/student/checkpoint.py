"""Student files: ``student.safetensors`` and ``heads.safetensors``; see ``models.weights.model_format``."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from radioplat import __version__
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.models.weights.model_format import VERSION_KEY, Format, save_files

STUDENT_FILE, HEADS_FILE = "student.safetensors", "heads.safetensors"
STUDENT_KEY = "radioplat.student"  # in the metadata


class _StudentFormat(Format[StudentArchitecture, Student]):
    def load(self, path: str | Path, where: str = "", ema: bool | None = None, verify: bool = True) -> Student:
        """Open a student as :meth:`Format.load` does; reparametrized weights are replaced by plain ones."""
        return super().load(path, where, ema, verify).fold()


STUDENT = _StudentFormat(
    {STUDENT_FILE: "", HEADS_FILE: "heads."}, STUDENT_KEY, StudentArchitecture, lambda form, where: Student(form)
)
is_checkpoint, load_student = STUDENT.holds, STUDENT.load
read_architecture, read_tensors = STUDENT.read_architecture, STUDENT.read_tensors


def save_student(student: Student, tensors: dict[str, torch.Tensor], folder: Path) -> None:
    """Write fp32 ``tensors`` (names as in ``student.state_dict()``) into ``folder``."""
    save_files(STUDENT.files(student.architecture, tensors), folder)


def save_one_file(student: Student, path: Path, metadata: dict[str, str]) -> None:
    """Write all of ``student``, fp32, as one safetensors file that :func:`load_student` opens.

    Args:
        metadata: further metadata.
    """
    tensors = {k: (v.float() if v.is_floating_point() else v).contiguous() for k, v in student.state_dict().items()}
    written = {STUDENT_KEY: student.architecture.to_json(), VERSION_KEY: __version__}
    save_file(tensors, path, {**metadata, **written, "format": "pt"})
