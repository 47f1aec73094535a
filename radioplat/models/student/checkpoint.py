"""Student files: ``student.safetensors`` and ``heads.safetensors``, with the architecture in their metadata.

A run that averages its weights also writes ``ema.safetensors``: the averages of the tensors that have one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import safetensors
import torch
from safetensors.torch import load_file, save_file

from radioplat import __version__
from radioplat.common.unknown_fields import unknown_fields
from radioplat.errors import WeightsError
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.models.weights.manifest import require_unchanged
from radioplat.models.weights.read import load_into, require_finite
from radioplat.models.weights.stored_numbers import require_plausible

STUDENT_FILE, HEADS_FILE, EMA_FILE = "student.safetensors", "heads.safetensors", "ema.safetensors"
STUDENT_KEY, VERSION_KEY = "radioplat.student", "radioplat.version"  # in the metadata


def student_files(
    architecture: StudentArchitecture, tensors: dict[str, torch.Tensor]
) -> dict[str, tuple[dict[str, torch.Tensor], dict[str, str]]]:
    """Return content of a checkpoint's student files, by their names: fp32 tensors, and the metadata.

    Args:
        tensors: names as in ``student.state_dict()``.
    """
    heads = {k: v.float() for k, v in tensors.items() if k.startswith("heads.")}
    body = {k: v.float() if v.is_floating_point() else v for k, v in tensors.items() if not k.startswith("heads.")}
    metadata = {STUDENT_KEY: architecture.to_json(), VERSION_KEY: __version__, "format": "pt"}
    return {STUDENT_FILE: (body, metadata), HEADS_FILE: (heads, metadata)}


def save_student(student: Student, tensors: dict[str, torch.Tensor], folder: Path) -> None:
    """Write fp32 ``tensors`` (names as in ``student.state_dict()``) into ``folder``."""
    save_files(student_files(student.architecture, tensors), folder)


def save_files(files: dict[str, tuple[dict[str, torch.Tensor], dict[str, str]]], folder: Path) -> None:
    """Write tensors and metadata into ``folder``, by the names of their files."""
    for name, (tensors, metadata) in files.items():
        save_file({k: v.contiguous() for k, v in tensors.items()}, folder / name, metadata)


def save_one_file(student: Student, path: Path, metadata: dict[str, str]) -> None:
    """Write all of ``student``, fp32, as one safetensors file that :func:`load_student` opens.

    Args:
        metadata: further metadata.
    """
    tensors = {k: (v.float() if v.is_floating_point() else v).contiguous() for k, v in student.state_dict().items()}
    written = {STUDENT_KEY: student.architecture.to_json(), VERSION_KEY: __version__}
    save_file(tensors, path, {**metadata, **written, "format": "pt"})


def is_checkpoint(path: str | Path) -> bool:
    """Return whether ``path`` is a folder, or a file of :func:`save_one_file`, that :func:`load_student` can open."""
    return is_model(path, STUDENT_FILE, STUDENT_KEY)


def is_model(path: str | Path, name: str, key: str) -> bool:
    """Return whether ``path`` is a folder with the file ``name``, or a safetensors file with metadata ``key``."""
    path = Path(path)
    if path.suffix != ".safetensors" or not path.is_file():
        return (path / name).is_file()
    try:
        with safetensors.safe_open(path, "pt") as opened:
            return key in (opened.metadata() or {})
    except (safetensors.SafetensorError, OSError):
        return False


def read_architecture(path: str | Path, where: str = "") -> StudentArchitecture:
    """Read the architecture that a student was saved with; no tensor is read.

    Args:
        path: as of :func:`load_student`.

    Raises:
        WeightsError: there is no student at ``path``, or this version cannot read its architecture.
    """
    file = Path(path) if Path(path).is_file() else Path(path) / STUDENT_FILE
    if not file.is_file():
        raise WeightsError(
            f"{path} is not a checkpoint folder (it holds no {STUDENT_FILE})",
            where=where,
            hint="Give a model_epoch_... folder or the model_latest link.",
        )
    try:
        with safetensors.safe_open(file, "pt") as opened:
            metadata = opened.metadata() or {}
    except (safetensors.SafetensorError, OSError) as error:
        raise WeightsError(f"{file} is not a whole safetensors file: {error}", where=where) from None
    if STUDENT_KEY not in metadata:
        raise WeightsError(f"{file} does not say which architecture it holds", where=where)
    require_plausible(metadata[STUDENT_KEY], file, where)
    try:
        return StudentArchitecture.from_json(metadata[STUDENT_KEY])
    except (ValueError, KeyError, TypeError, AttributeError):
        raise unknown_form(file, metadata, STUDENT_KEY, StudentArchitecture, where) from None


def unknown_form(file: Path, metadata: Mapping[str, str], key: str, kind: type, where: str) -> WeightsError:
    """Make the error for metadata under ``key`` that does not become a ``kind``: which fields, and which versions."""
    try:
        fields = unknown_fields(json.loads(metadata[key]), kind)
    except ValueError:
        fields = []
    part = f" ({key}: {', '.join(fields)})" if fields else f" ({key})"
    return WeightsError(
        f"{file} describes a model that radioplat {__version__} cannot read{part}; {written_by(metadata)}",
        where=where,
        hint="Use the version that wrote it.",
    )


def written_by(metadata: Mapping[str, str]) -> str:
    """Describe which version wrote a file with this metadata."""
    version = metadata.get(VERSION_KEY)
    return f"it was written by radioplat {version}" if version else "it does not say which version wrote it"


def read_tensors(path: str | Path, where: str = "") -> dict[str, torch.Tensor]:
    """Read all tensors of a checkpoint, backbone and heads, fp32.

    Raises:
        WeightsError: a file is missing or torn.
    """
    path = Path(path)
    tensors: dict[str, torch.Tensor] = {}
    for file in (path,) if path.is_file() else (path / STUDENT_FILE, path / HEADS_FILE):
        try:
            tensors.update(load_file(file))
        except (safetensors.SafetensorError, OSError) as error:
            raise WeightsError(f"{file} cannot be read: {error}", where=where) from None
    return tensors


def has_average(path: str | Path) -> bool:
    """Return whether a checkpoint folder contains EMA weights."""
    return (Path(path) / EMA_FILE).is_file()


def chosen_average(path: str | Path, ema: bool | None, where: str) -> dict[str, torch.Tensor]:
    """Read the EMA weights that replace plain ones; arguments as of :func:`load_student`.

    Raises:
        WeightsError: the file is torn, or there is none and ``ema`` is True.
    """
    if ema and not has_average(path):
        hint = "The run that wrote it had train.enable_ema=false."
        raise WeightsError(f"{path} has no EMA weights", where=where, hint=hint)
    return {} if ema is False else read_average(path, where)


def read_average(path: str | Path, where: str = "") -> dict[str, torch.Tensor]:
    """Read the EMA weights and statistics of a checkpoint folder, fp32; empty if the run kept none.

    Raises:
        WeightsError: the file is torn.
    """
    try:
        return load_file(Path(path) / EMA_FILE) if has_average(path) else {}
    except (safetensors.SafetensorError, OSError) as error:
        raise WeightsError(f"{Path(path) / EMA_FILE} cannot be read: {error}", where=where) from None


def load_student(path: str | Path, where: str = "", ema: bool | None = None) -> Student:
    """Open a trained student.

    Args:
        path: a checkpoint folder (``results/distill/model_latest``), or the file of ``export.format: safetensors``.
        ema: True for the averaged weights, False for the plain ones; None for the averaged if there are any.

    Returns:
        The student in fp32 and evaluation mode, on the CPU. Reparametrized weights are plain.

    Raises:
        WeightsError: the folder is no checkpoint, is torn, differs from its manifest, contains a NaN, or lacks the
            requested averages.
    """
    architecture = read_architecture(path, where)
    require_unchanged(path, (STUDENT_FILE, HEADS_FILE, *(() if ema is False else (EMA_FILE,))), where)
    student = Student(architecture)
    tensors = read_tensors(path, where) | chosen_average(path, ema, where)
    require_finite(tensors, path, where)
    load_into(student, tensors, path, where)
    return student.fold().eval()
