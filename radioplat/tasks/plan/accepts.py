"""The tasks that accept a student as it is, and the reasons of others to refuse it; by its structure alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec

from radioplat.compression.pruning.prune import require_plain
from radioplat.compression.quantization.placement import KINDS
from radioplat.design.student import build_on_meta
from radioplat.errors import RadioplatError
from radioplat.exporting.weights.export import format_problems
from radioplat.models.backbones.pyramid import Pyramid
from radioplat.models.modifiers.low_rank import splittable
from radioplat.models.probe import probe
from radioplat.models.quantized.layers import can_be_quantized
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.spec.schema.export import ExportFormat

_WHERE = "model.backbone.type"


@dataclass(frozen=True)
class TaskLine:
    """One task: whether it accepts the student, with details or the reason.

    Attributes:
        accepted: None where its structure alone does not tell.
    """

    task: str
    accepted: bool | None
    detail: str


class _No(Exception):
    """The reason of a refusal."""


def accepted_tasks(architecture: StudentArchitecture) -> list[TaskLine]:
    """A line a task, for a student of ``architecture`` at its own size; nothing is computed, no weights are read."""
    student = build_on_meta(architecture)
    ways: dict[str, Callable[[Student], str]] = {
        "classification": _classification,
        "kNN, linear probe": lambda _: "on its summary, frozen",
        "segmentation": _segmentation,
        "change": _change,
        "detection": _detection,
        "prune": _prune,
        "low_rank": _low_rank,
        "quantize": _quantize,
        **{f"export {form.value}": _format(form) for form in ExportFormat},
        "engine": _engine,
    }
    return list(_lines(student, ways))


def _lines(student: Student, ways: dict[str, Callable[[Student], str]]) -> Iterator[TaskLine]:
    for task, way in ways.items():
        try:
            yield TaskLine(task, None if way is _prune else True, way(student))
        except _No as why:
            yield TaskLine(task, False, str(why))
        except RadioplatError as error:
            yield TaskLine(task, False, "; ".join(p.message for p in error.problems))


def _classification(student: Student) -> str:
    if student.architecture.num_classes:
        return f"classifies {student.architecture.num_classes} classes by itself; `train` from its checkpoint"
    build_on_meta(replace(student.architecture, num_classes=2))  # raises where it has no place for a classifier
    return "a classifier by `train` from its checkpoint, or with distill.alpha"


def _segmentation(student: Student) -> str:
    rows, columns = _grid(student)
    return f"a decoder on its frozen map of {rows} x {columns} cells (evaluate.segmentation)"


def _change(student: Student) -> str:
    rows, columns = _grid(student)
    return f"a decoder on the difference of two maps of {rows} x {columns} cells (evaluate.change)"


def _grid(student: Student) -> tuple[int, int]:
    size = student.architecture.img_size
    spatial = probe(student.backbone, size, frozenset({"spatial"}), "dataset.img_size").spatial
    assert spatial is not None
    rows, columns = spatial.shape[1:3]
    if rows * columns == 1:
        raise _No(f"of an image of {size} pixels its map is one cell, which tells no places apart")
    return rows, columns


def _detection(student: Student) -> str:
    if student.architecture.quantized is not None:
        raise _No("it is quantized: a detector is built on it before")
    try:
        pyramid = Pyramid(student.backbone, _WHERE)
    except RadioplatError:
        raise
    except Exception as error:  # models fail on a size by whatever their layers raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise _No(f"its maps cannot be computed: {reason}") from None
    size, last = student.architecture.img_size, pyramid.strides[-1]
    if find_spec("transformers") is None:
        raise _No("RT-DETR and DINO need transformers: pip install 'radioplat[hf]'")
    detail = f"RT-DETR and DINO on maps of strides {', '.join(map(str, pyramid.strides))}"
    return detail if size % last == 0 else f"{detail}, of images whose sides are multiples of {last}"


def _prune(student: Student) -> str:
    require_plain(student.architecture)
    return "tried, on weights of its form, where the spec has a section prune"


def _low_rank(student: Student) -> str:
    if student.architecture.quantized is not None:
        raise _No("a quantized student cannot be decomposed")
    if not (count := sum(splittable(m) for m in student.backbone.modules())):
        raise _No("it has no linear layer and no 1x1 convolution")
    return f"{count} linear layers and 1x1 convolutions"


def _quantize(student: Student) -> str:
    if student.architecture.quantized is not None:
        raise _No("this student is quantized already; `distill` or `train` from its checkpoint trains it so")
    if not (count := sum(isinstance(m, KINDS) and can_be_quantized(m) for m in student.backbone.modules())):
        raise _No("none of its layers has a quantized form")
    return f"{count} layers of the backbone"


def _format(form: ExportFormat) -> Callable[[Student], str]:
    details = {
        ExportFormat.onnx: "one file, its heads where export.adaptors names them",
        ExportFormat.radio: "torch.hub.load('NVlabs/RADIO', ...) reads it",
        ExportFormat.hf: "transformers.AutoModel reads it",
        ExportFormat.timm: "timm.create_model reads it",
        ExportFormat.safetensors: "one file",
    }

    def way(student: Student) -> str:
        """See :func:`radioplat.exporting.weights.export.format_problems`."""
        if problems := format_problems(student, form, []):
            raise _No("; ".join(problem.message for problem in problems))
        return details[form]

    return way


def _engine(student: Student) -> str:
    if problems := format_problems(student, ExportFormat.onnx, []):
        raise _No("; ".join(problem.message for problem in problems))
    return "from its ONNX file, by gen_trt_engine"
