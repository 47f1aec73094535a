"""A trained student as weights that others load: written aside, read back, compared, then renamed."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from radioplat.errors import EngineError, Problem
from radioplat.exporting.weights.hf import write_hf
from radioplat.exporting.weights.plain_student import plain_copy
from radioplat.exporting.weights.radio import known_adaptors, require_radio, write_radio
from radioplat.exporting.weights.timm import TimmFile, timm_file
from radioplat.models.backbones.radio_vit import RadioViT
from radioplat.models.features import Features
from radioplat.models.student.checkpoint import load_student, save_one_file
from radioplat.models.student.student import Student
from radioplat.models.weights.radio_layout import read_radio, split_radio
from radioplat.models.weights.read import load_into
from radioplat.spec.schema.export import ExportFormat

TOLERANCE = 1e-4  # of what is read back, in fp32, relative to the largest value
# Where each format is written in the task's folder.
NAMES = {
    ExportFormat.radio: "student_radio.pth",
    ExportFormat.hf: "student_hf",
    ExportFormat.timm: "student_timm.safetensors",
    ExportFormat.safetensors: "student.safetensors",
}


@dataclass(frozen=True)
class WeightsReport:
    """What was written.

    Attributes:
        path: the file, or the folder of ``hf``.
        format: see :class:`~radioplat.spec.schema.export.ExportFormat`.
        adaptors: heads in it, by teacher's name.
        bytes: size on disk.
        max_abs_error: of the backbone's features, read back from the file, against the student's, in fp32.
        load: a line of Python that opens it.
        notes: what is not in it, or is there for a loader's sake, a sentence each.
    """

    path: Path
    format: ExportFormat
    adaptors: list[str]
    bytes: int
    max_abs_error: float
    load: str
    notes: list[str] = field(default_factory=list)


def export_weights(
    student: Student, form: ExportFormat, path: str | Path, *, height: int, width: int, adaptors: Sequence[str] = ()
) -> WeightsReport:
    """Write ``student`` in ``form`` and prove what was written before it gets its name.

    Args:
        path: a file, or for ``hf`` a folder; what is there is replaced, a folder only if empty or an earlier export.
        height, width: pixels of the images that the proof is made with, and for which ``timm`` positions are cut.
        adaptors: heads, by teacher's name; none named: all (see ``export.adaptors``).

    Raises:
        EngineError: the format cannot hold the student or a head, the place cannot be written, or what was written
            does not give the student's features.
    """
    path = Path(path)
    if problems := format_problems(student, form, adaptors):
        raise EngineError(*problems)
    if student.backbone.needs_multiple and (height % student.stride or width % student.stride):
        raise EngineError(
            f"{height} x {width} pixels are no whole patches of {student.stride}",
            where="export.input_height, export.input_width",
        )
    write = {
        ExportFormat.radio: _radio,
        ExportFormat.hf: _hf,
        ExportFormat.timm: _timm,
        ExportFormat.safetensors: _safetensors,
    }[form]
    aside = _aside(path, folder=form is ExportFormat.hf)
    try:
        target = aside / path.name
        if form is ExportFormat.hf:
            target.mkdir()
        backbone, chosen, load, notes = write(student, target, path, (height, width), adaptors)
        difference = _difference(student, backbone, height, width)
        files = [file for file in (target.rglob("*") if target.is_dir() else [target]) if file.is_file()]
        size = sum(file.stat().st_size for file in files)
        if target.is_dir() and path.is_dir():
            shutil.rmtree(path)
        os.replace(target, path)
    except OSError as error:
        raise EngineError(f"cannot write: {error.strerror or error}", where=str(path)) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return WeightsReport(path, form, chosen, size, difference, load, notes)


def format_problems(student: Student, form: ExportFormat, adaptors: Sequence[str]) -> list[Problem]:
    """What would keep ``student``, which may be on the meta device, from leaving in ``form``."""
    reshaped = student.architecture.pruned is not None or student.architecture.low_rank
    if reshaped and form not in (ExportFormat.onnx, ExportFormat.safetensors):
        hint = "Take onnx or safetensors."
        what = f"format {form.value} has no place for the shapes of a pruned student or one of low rank"
        return [Problem(what, "export.format", hint)]
    if student.architecture.quantized is not None and form not in (ExportFormat.onnx, ExportFormat.safetensors):
        hint = "Take onnx or safetensors."
        return [Problem(f"format {form.value} has no place for a quantized student's scales", "export.format", hint)]
    try:
        if form in (ExportFormat.radio, ExportFormat.hf):
            require_radio(student)
        if form is ExportFormat.timm and len(adaptors) > 1:
            return [
                Problem("timm's models have no adaptors, and one class token", "export.adaptors", "Name one or none.")
            ]
    except EngineError as error:
        return error.problems
    return []


Encode = Callable[[torch.Tensor], Features]
Written = tuple[Encode, list[str], str, list[str]]


def _radio(student: Student, target: Path, path: Path, size: tuple[int, int], adaptors: Sequence[str]) -> Written:
    found = write_radio(student, target, adaptors)
    line = f"torch.hub.load('NVlabs/RADIO', 'radio_model', version={str(path)!r}, adaptor_names={found.adaptors!r})"
    return _read_radio(target), found.adaptors, line, found.notes


def _hf(student: Student, target: Path, path: Path, size: tuple[int, int], adaptors: Sequence[str]) -> Written:
    found = write_hf(student, target, adaptors)
    line = f"transformers.AutoModel.from_pretrained({str(path)!r}, trust_" + "remote_code=True)"
    return _read_radio(target), found.adaptors, line, found.notes


def _timm(student: Student, target: Path, path: Path, size: tuple[int, int], adaptors: Sequence[str]) -> Written:
    found = timm_file(student, *size, adaptors)
    known = {"architecture": found.name, "kwargs": json.dumps(found.kwargs), "format": "pt"}
    normal = {"mean": json.dumps(found.mean), "std": json.dumps(found.std)}
    save_file({k: v.contiguous() for k, v in found.tensors.items()}, target, known | normal)
    line = f"{found.call}.load_state_dict(safetensors.torch.load_file({str(path)!r}))"
    return _read_timm(target, found, student), [], line, found.notes


def _safetensors(student: Student, target: Path, path: Path, size: tuple[int, int], adaptors: Sequence[str]) -> Written:
    chosen = known_adaptors(adaptors, student.head_names)
    heads = tuple(head for head in student.architecture.heads if head.name in chosen)
    # A class token whose teacher's head stays behind would leave the summary.
    same = len(heads) == len(student.architecture.heads)
    notes = [] if same else ["the summary of a student without some heads has no class token of theirs"]
    less = Student(dataclasses.replace(student.architecture, heads=heads))
    less.load_state_dict({k: v for k, v in student.state_dict().items() if k in less.state_dict()})
    architecture = student.architecture
    normal = {"mean": json.dumps(architecture.mean), "std": json.dumps(architecture.std)}
    save_one_file(less, target, normal | {"input_size": str(architecture.img_size)})
    again = load_student(target)
    line = f"radioplat.load_student({str(path)!r})"
    return again.backbone, chosen, line, notes


def _read_radio(path: Path) -> Encode:
    """The backbone that our own reader makes of a RADIO file or folder."""
    contents = read_radio(path)
    assert contents is not None
    parts = split_radio(contents, str(path))
    backbone = RadioViT(**parts.arguments).eval()
    load_into(backbone, parts.backbone, path, str(path))
    return backbone


def _read_timm(path: Path, found: TimmFile, student: Student) -> Encode:
    model = found.create()
    model.load_state_dict(load_file(path))

    def encode(images: torch.Tensor) -> Features:
        raw = model.forward_features(images)
        if not isinstance(student.backbone, RadioViT):
            return Features(None, student.backbone.spatial(raw, images))
        prefix, stride = model.num_prefix_tokens, student.stride
        grid = (images.shape[0], images.shape[2] // stride, images.shape[3] // stride, -1)
        return Features(None, raw[:, prefix:].reshape(grid), {"token": raw[:, 0], "slot": torch.tensor(found.token)})

    return encode


def _difference(student: Student, encode: Encode, height: int, width: int) -> float:
    """Largest difference of features between ``encode`` and the student's backbone on one image of noise.

    Raises:
        EngineError: it is more than rounding.
    """
    ours = plain_copy(student).backbone
    images = torch.randn(1, 3, height, width, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        mine, theirs = ours(images), encode(images)
    pairs = [(mine.spatial, theirs.spatial)]
    if "slot" in theirs.named:
        pairs.append((mine.named["tokens"][:, int(theirs.named["slot"])], theirs.named["token"]))
    elif "tokens" in theirs.named:
        count = min(mine.named["tokens"].shape[1], theirs.named["tokens"].shape[1])
        pairs.append((mine.named["tokens"][:, :count], theirs.named["tokens"][:, :count]))
    error = max(float((a - b).abs().max()) for a, b in pairs)
    largest = max(float(a.abs().max()) for a, _ in pairs)
    if not error <= TOLERANCE * max(largest, 1.0):
        raise EngineError(
            f"what was written differs from the student by {error:.2g}, so it was not kept",
            where="export.format",
            hint="This is a fault of radioplat: please report it with the student's experiment.yaml.",
        )
    return error


def _aside(path: Path, folder: bool) -> Path:
    """A folder beside ``path``, so that what is finished is renamed and never half there.

    Raises:
        EngineError: ``path`` is something that must not be replaced, or its folder cannot be written.
    """
    if folder and path.is_file():
        raise EngineError("this is a file, and format hf writes a folder", where=str(path))
    if folder and path.is_dir() and any(path.iterdir()) and not (path / "config.json").is_file():
        raise EngineError("this folder holds something else than an export", where=str(path), hint="Name another.")
    if not folder and path.is_dir():
        raise EngineError("this is a folder, not a file name", where=str(path))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    except OSError as error:
        raise EngineError(f"cannot write here: {error.strerror}", where=str(path.parent)) from error
