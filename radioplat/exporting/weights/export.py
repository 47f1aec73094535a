"""Export a trained student as weights for other libraries: write, read back, compare, then rename."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from radioplat.errors import EngineError, Problem
from radioplat.exporting.onnx.publish import open_partial_folder
from radioplat.exporting.weights.hf import write_hf
from radioplat.exporting.weights.hf_native import native_problems, write_hf_native
from radioplat.exporting.weights.radio import (
    adaptor_problems,
    known_adaptors,
    require_radio,
    type_problems,
    write_radio,
)
from radioplat.models.backbones.radio_1d import Radio1D
from radioplat.models.backbones.radio_vit import RadioViT
from radioplat.models.features import Features
from radioplat.models.source import Source, metadata_of
from radioplat.models.student.checkpoint import load_student, save_one_file
from radioplat.models.student.plain_copy import plain_copy
from radioplat.models.student.student import Student
from radioplat.models.student.timm_form import TimmForm, timm_form, timm_problems
from radioplat.models.weights.radio_layout import read_radio, split_radio
from radioplat.models.weights.read import load_into
from radioplat.spec.schema.export import AdaptorTypes, ExportFormat

TOLERANCE = 1e-4  # of features from the file, in fp32, relative to the largest value


@dataclass(frozen=True)
class WeightsReport:
    """Result of an export.

    Attributes:
        path: the file, or the folder of ``hf`` and ``hf_native``.
        format: see :class:`~radioplat.spec.schema.export.ExportFormat`.
        adaptors: heads in it, by teacher's name.
        bytes: size on disk.
        max_abs_error: largest difference of the backbone's features, from the file, from the student's, in fp32.
        load: a line of Python that opens it.
        notes: omissions, and additions that a loader needs, one sentence each.
    """

    path: Path
    format: ExportFormat
    adaptors: list[str]
    bytes: int
    max_abs_error: float
    load: str
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Wanted:
    """The parts of a student to write.

    Attributes:
        height, width: pixels of the images of the comparison, and of the positions for ``timm``.
        adaptors: heads, by teacher's name; empty: all (see ``export.adaptors``).
        types: of the adaptors of a RADIO file.
        sources: the checkpoint that the student was read from.
    """

    height: int
    width: int
    adaptors: Sequence[str] = ()
    types: AdaptorTypes = AdaptorTypes.generic
    sources: Sequence[Source] = ()


def export_weights(
    student: Student,
    form: ExportFormat,
    path: str | Path,
    *,
    height: int,
    width: int,
    adaptors: Sequence[str] = (),
    types: AdaptorTypes = AdaptorTypes.generic,
    sources: Sequence[Source] = (),
) -> WeightsReport:
    """Write ``student`` in ``form``, after comparing the file's features with the student's.

    Args:
        path: a file, or for ``hf`` and ``hf_native`` a folder; replaced if it exists, a folder only if empty or an
            earlier export.
        height, width, adaptors, types, sources: see :class:`Wanted`.

    Raises:
        EngineError: the format does not support the student or a head, the path cannot be written, or the file does
            not give the student's features.
    """
    path, wanted = Path(path), Wanted(height, width, adaptors, types, sources)
    if problems := format_problems(student, form, adaptors, types):
        raise EngineError(*problems)
    if student.backbone.needs_multiple and (height % student.stride or width % student.stride):
        raise EngineError(
            f"{height} x {width} pixels are not multiples of the patch size {student.stride}",
            where="export.input_height, export.input_width",
        )
    definition = FORMATS[form]
    partial = _partial_folder(path, definition.is_folder)
    try:
        target = partial / path.name
        if definition.is_folder:
            target.mkdir()
        backbone, chosen, load, notes = definition.write(student, target, path, wanted)
        difference = _difference(student, backbone, height, width)
        files = [file for file in (target.rglob("*") if target.is_dir() else [target]) if file.is_file()]
        size = sum(file.stat().st_size for file in files)
        if target.is_dir() and path.is_dir():
            shutil.rmtree(path)
        os.replace(target, path)
    except OSError as error:
        raise EngineError(f"cannot write: {error.strerror or error}", where=str(path)) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return WeightsReport(path, form, chosen, size, difference, load, notes)


def format_problems(
    student: Student, form: ExportFormat, adaptors: Sequence[str], types: AdaptorTypes = AdaptorTypes.generic
) -> list[Problem]:
    """Return the reasons why ``student``, which may be on the meta device, cannot be exported in ``form``."""
    if form is ExportFormat.onnx:
        return []
    definition, architecture, unsupported = FORMATS[form], student.architecture, ""
    if architecture.pruned is not None or architecture.low_rank:
        unsupported = "the shapes of a pruned student or one of low rank"
    elif architecture.fused_branches:
        unsupported = "the single convolutions that were blocks of several branches"
    elif isinstance(student.backbone, Radio1D):
        unsupported = "the decoder of a radio1d_vit_*"
    elif architecture.quantized is not None:
        unsupported = "a quantized student's scales"
    if unsupported and not definition.any_student:
        message = f"format {form.value} has no place for {unsupported}"
        return [Problem(message, "export.format", "Use onnx or safetensors.")]
    try:
        if definition.radio_only:
            require_radio(student)
    except EngineError as error:
        return error.problems
    if len(adaptors) > definition.most_adaptors:
        return [Problem(definition.why_no_more, "export.adaptors", "Name fewer or none.")]
    return definition.problems(student, adaptors) + type_problems(student, adaptors, types)


Encode = Callable[[torch.Tensor], Features]
Written = tuple[Encode, list[str], str, list[str]]


def _radio(student: Student, target: Path, path: Path, wanted: Wanted) -> Written:
    written = write_radio(student, target, wanted.adaptors, wanted.types, metadata_of(wanted.sources))
    line = f"torch.hub.load('NVlabs/RADIO', 'radio_model', version={str(path)!r}, adaptor_names={written.adaptors!r})"
    return _read_radio(target), written.adaptors, line, written.notes


def _hf(student: Student, target: Path, path: Path, wanted: Wanted) -> Written:
    written = write_hf(student, target, wanted.adaptors, metadata_of(wanted.sources))
    line = f"transformers.AutoModel.from_pretrained({str(path)!r}, trust_" + "remote_code=True)"
    return _read_radio(target), written.adaptors, line, written.notes


def _hf_native(student: Student, target: Path, path: Path, wanted: Wanted) -> Written:
    notes = write_hf_native(student, target, metadata_of(wanted.sources))
    return _read_radio(target), [], f"transformers.AutoModel.from_pretrained({str(path)!r})", notes


def _timm(student: Student, target: Path, path: Path, wanted: Wanted) -> Written:
    known_adaptors(wanted.adaptors, student.head_names)
    sides, teacher = (wanted.height, wanted.width), next(iter(wanted.adaptors), None)
    content = timm_form(student.backbone, student.architecture, student.classifier, sides, teacher)
    metadata = {"architecture": content.name, "kwargs": json.dumps(content.kwargs), "format": "pt"}
    metadata |= {"mean": json.dumps(student.architecture.mean), "std": json.dumps(student.architecture.std)}
    metadata |= metadata_of(wanted.sources)
    save_file({k: v.contiguous() for k, v in content.tensors.items()}, target, metadata)
    line = f"{content.call}.load_state_dict(safetensors.torch.load_file({str(path)!r}))"
    return _read_timm(target, content, student), [], line, content.notes


def _safetensors(student: Student, target: Path, path: Path, wanted: Wanted) -> Written:
    chosen = known_adaptors(wanted.adaptors, student.head_names)
    heads = tuple(head for head in student.architecture.heads if head.name in chosen)
    # The summary has the class tokens of the teachers that have heads.
    complete = len(heads) == len(student.architecture.heads)
    notes = [] if complete else ["the summary does not have the class tokens of heads that were left out"]
    reduced = Student(dataclasses.replace(student.architecture, heads=heads))
    reduced.load_state_dict({k: v for k, v in student.state_dict().items() if k in reduced.state_dict()})
    architecture = student.architecture
    metadata = {"mean": json.dumps(architecture.mean), "std": json.dumps(architecture.std)}
    save_one_file(reduced, target, metadata | {"input_size": str(architecture.img_size)} | metadata_of(wanted.sources))
    return load_student(target).backbone, chosen, f"radioplat.load_student({str(path)!r})", notes


@dataclass(frozen=True)
class WeightsFormat:
    """A format of exported weights.

    Attributes:
        file_name: default name in the task's folder.
        write: ``write(student, target, final path, wanted)`` writes ``target``; returns a function
            that computes the file's features, the heads in it, a line of Python that opens it, and notes.
        reader: what reads it, for ``plan``.
        is_folder: ``target`` is a folder.
        any_student: also pruned, low-rank and quantized students.
        radio_only: only RADIO ViTs.
        most_adaptors: limit of named heads.
        why_no_more: the reason for it.
        problems: further reasons why the format does not support a student and the named heads.
    """

    file_name: str
    write: Callable[[Student, Path, Path, Wanted], Written]
    reader: str
    is_folder: bool = False
    any_student: bool = False
    radio_only: bool = False
    most_adaptors: float = math.inf
    why_no_more: str = ""
    problems: Callable[[Student, Sequence[str]], list[Problem]] = lambda student, adaptors: []


FORMATS = {
    ExportFormat.radio: WeightsFormat(
        "student_radio.pth",
        _radio,
        "torch.hub.load('NVlabs/RADIO', ...) reads it",
        radio_only=True,
        problems=adaptor_problems,
    ),
    ExportFormat.hf: WeightsFormat(
        "student_hf",
        _hf,
        "transformers.AutoModel reads it, with the code in the folder",
        is_folder=True,
        radio_only=True,
        problems=partial(adaptor_problems, own_code=True),
    ),
    ExportFormat.hf_native: WeightsFormat(
        "student_hf_native",
        _hf_native,
        "transformers.AutoModel reads it",
        is_folder=True,
        radio_only=True,
        most_adaptors=0,
        why_no_more="transformers' RadioModel has no adaptors",
        problems=lambda student, adaptors: native_problems(student),
    ),
    ExportFormat.timm: WeightsFormat(
        "student_timm.safetensors",
        _timm,
        "timm.create_model reads it",
        most_adaptors=1,
        why_no_more="timm's models have no adaptors, and one class token",
        problems=lambda student, adaptors: timm_problems(student),
    ),
    ExportFormat.safetensors: WeightsFormat("student.safetensors", _safetensors, "one file", any_student=True),
}


def _read_radio(path: Path) -> Encode:
    """Read the backbone of a RADIO file or folder."""
    contents = read_radio(path)
    assert contents is not None
    parts = split_radio(contents, str(path))
    backbone = RadioViT(**parts.arguments).eval()
    load_into(backbone, parts.backbone, path, str(path))
    return backbone


def _read_timm(path: Path, content: TimmForm, student: Student) -> Encode:
    model = content.create()
    model.load_state_dict(load_file(path))

    def encode(images: torch.Tensor) -> Features:
        raw = model.forward_features(images)
        if not isinstance(student.backbone, RadioViT):
            return Features(None, student.backbone.spatial(raw, images))
        prefix, stride = model.num_prefix_tokens, student.stride
        grid = (images.shape[0], images.shape[2] // stride, images.shape[3] // stride, -1)
        return Features(None, raw[:, prefix:].reshape(grid), {"token": raw[:, 0], "slot": torch.tensor(content.token)})

    return encode


def _difference(student: Student, encode: Encode, height: int, width: int) -> float:
    """Return the largest difference of ``encode``'s features from the student's on one image of noise.

    Raises:
        EngineError: it is larger than rounding explains.
    """
    backbone = plain_copy(student).backbone
    images = torch.randn(1, 3, height, width, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        own, read = backbone(images), encode(images)
    pairs = [(own.spatial, read.spatial)]
    if "slot" in read.named:
        pairs.append((own.named["tokens"][:, int(read.named["slot"])], read.named["token"]))
    elif "tokens" in read.named:
        count = min(own.named["tokens"].shape[1], read.named["tokens"].shape[1])
        pairs.append((own.named["tokens"][:, :count], read.named["tokens"][:, :count]))
    error = max(float((a - b).abs().max()) for a, b in pairs)
    largest = max(float(a.abs().max()) for a, _ in pairs)
    if not error <= TOLERANCE * max(largest, 1.0):
        raise EngineError(
            f"the written file differs from the student by {error:.2g}, so it was deleted",
            where="export.format",
            hint="This is a defect of radioplat: please report it with the student's experiment.yaml.",
        )
    return error


def _partial_folder(path: Path, is_folder: bool) -> Path:
    """Create a temporary folder next to ``path``, from which the finished export is renamed.

    Raises:
        EngineError: ``path`` must not be replaced, or its folder cannot be written.
    """
    if is_folder and path.is_file():
        raise EngineError("this is a file, and this format writes a folder", where=str(path))
    if is_folder and path.is_dir() and any(path.iterdir()) and not (path / "config.json").is_file():
        raise EngineError("this folder is not an earlier export", where=str(path), hint="Use another name.")
    return open_partial_folder(path, allow_folder=is_folder)
