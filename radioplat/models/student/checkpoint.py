"""Student files: ``student.safetensors`` and ``heads.safetensors``; see ``models.weights.model_format``."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from safetensors.torch import save_file

from radioplat import __version__
from radioplat.errors import WeightsError
from radioplat.models.student.architecture import StudentArchitecture
from radioplat.models.student.student import Student
from radioplat.models.weights.model_format import VERSION_KEY, Format, save_files

STUDENT_FILE, HEADS_FILE = "student.safetensors", "heads.safetensors"
STUDENT_KEY = "radioplat.student"  # in the metadata


class _StudentFormat(Format[StudentArchitecture, Student]):
    def load(self, path: str | Path, where: str = "", ema: bool | None = None, verify: bool = True) -> Student:
        """Open a student as :meth:`Format.load` does; reparametrized weights are replaced by plain ones."""
        return super().load(path, where, ema, verify).fold()


STUDENT: _StudentFormat = _StudentFormat(
    {STUDENT_FILE: "", HEADS_FILE: "heads."}, STUDENT_KEY, StudentArchitecture, lambda form, where: Student(form)
)
is_checkpoint = STUDENT.holds
read_architecture, read_tensors = STUDENT.read_architecture, STUDENT.read_tensors


def load_student(path: str | Path, where: str = "", ema: bool | None = None, verify: bool = True) -> Student:
    """Open a student, in fp32 and evaluation mode, on the CPU.

    Args:
        path: a checkpoint folder (``results/distill/model_latest``), or the file of ``export.format: safetensors``.
        where: the spec field of the path, for messages.
        ema: True for the averaged weights, False for the plain ones; None for the averaged if there are any.
        verify: compare the files with the checkpoint's ``manifest.json``, which reads them once more.

    Raises:
        WeightsError: this is no student, is damaged, differs from its manifest, contains a NaN, or lacks the requested
            averages.

    Example:
        >>> student = radioplat.load_student("results/distill/model_latest").to("cuda")
        >>> features = student(images)  # uint8 [B, 3, H, W], or floats in [0, 1]
        >>> features.summary, features.spatial  # [B, D] and [B, h, w, D]
        >>> student.head("clip", features).summary  # in the space of the teacher "clip"
    """
    if not isinstance(path, (str, os.PathLike)):
        raise WeightsError(f"this is a {type(path).__name__}, not a path", where=where or "path")
    if (hint := instead_of_student(Path(path))) and not STUDENT.holds(path):
        raise WeightsError(f"{path} is not a student's checkpoint", where=where, hint=hint)
    return STUDENT.load(path, where, ema, verify)


def instead_of_student(path: Path) -> str:
    """Return a hint for a path that is no student's: how to use it, or where a student is; empty if not known."""
    if path.suffix.lower() in (".onnx", ".engine"):
        return "radioplat.embed and radioplat.predict run such a file."
    if not path.is_dir():
        return ""
    if (path / "detector.safetensors").is_file():
        load = "radioplat.models.detectors.checkpoint.load_detector"
        return f"It is a detector's: radioplat.predict runs it, {load} opens it."
    inside = [link.parent for name in ("", "*/") for link in sorted(path.glob(f"{name}model_*/{STUDENT_FILE}"))]
    latest = [folder for folder in inside if folder.name == "model_latest"]
    return f"There is one in it: {(latest or inside)[0]}." if inside else ""


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
