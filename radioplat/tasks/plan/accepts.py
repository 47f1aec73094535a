"""The tasks that accept a student, and the reasons of others to refuse it, by its architecture alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec

from radioplat.compression.pruning.prune import require_plain
from radioplat.compression.quantization.placement import KINDS
from radioplat.design.student import build_on_meta
from radioplat.errors import RadioplatError
from radioplat.exporting.weights.export import FORMATS, format_problems
from radioplat.models.backbones.pyramid import Pyramid
from radioplat.models.modifiers.low_rank import splittable
from radioplat.models.probe import probe
from radioplat.models.quantized.layers import can_be_quantized
from radioplat.models.student.architecture import StudentArchitecture
from radioplat.models.student.student import Student
from radioplat.spec.schema.export import ExportFormat

_WHERE = "model.backbone.type"


@dataclass(frozen=True)
class TaskLine:
    """One task: whether it accepts the student, with details or the reason.

    Attributes:
        accepted: None if the architecture alone does not decide.
    """

    task: str
    accepted: bool | None
    detail: str


class _Refusal(Exception):
    """The reason why a task refuses the student."""


def accepted_tasks(architecture: StudentArchitecture) -> list[TaskLine]:
    """Return a line for each task, for a student of ``architecture``; nothing is computed and no weights are read."""
    student = build_on_meta(architecture)
    checks: dict[str, Callable[[Student], str]] = {
        "classification": _classification,
        "kNN, linear probe": lambda _: "on its summary, frozen",
        "segmentation": lambda s: f"a decoder on its frozen map of {_grid(s)} cells (evaluate.segmentation)",
        "change": lambda s: f"a decoder on the difference of two maps of {_grid(s)} cells (evaluate.change)",
        "detection": _detection,
        "prune": _prune,
        "low_rank": _low_rank,
        "quantize": _quantize,
        **{f"export {form.value}": _format(form) for form in ExportFormat},
        "engine": _engine,
    }
    lines = []
    for task, check in checks.items():
        try:
            lines.append(TaskLine(task, None if check is _prune else True, check(student)))
        except _Refusal as reason:
            lines.append(TaskLine(task, False, str(reason)))
        except RadioplatError as error:
            lines.append(TaskLine(task, False, "; ".join(p.message for p in error.problems)))
    return lines


def _classification(student: Student) -> str:
    if student.architecture.num_classes:
        return f"classifies {student.architecture.num_classes} classes by itself; `train` from its checkpoint"
    build_on_meta(replace(student.architecture, num_classes=2))  # raises if it cannot have a classifier
    return "a classifier by `train` from its checkpoint, or with distill.alpha"


def _grid(student: Student) -> str:
    size = student.architecture.img_size
    spatial = probe(student.backbone, size, frozenset({"spatial"}), "dataset.img_size").spatial
    assert spatial is not None
    rows, columns = spatial.shape[1:3]
    if rows * columns == 1:
        raise _Refusal(f"of an image of {size} pixels its map has only one cell")
    return f"{rows} x {columns}"


def _detection(student: Student) -> str:
    if student.architecture.quantized is not None:
        raise _Refusal("it is quantized; build the detector on the student from before")
    try:
        pyramid = Pyramid(student.backbone, _WHERE)
    except RadioplatError:
        raise
    except Exception as error:  # layers raise errors of any type for a wrong size
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise _Refusal(f"its maps cannot be computed: {reason}") from None
    size, last = student.architecture.img_size, pyramid.strides[-1]
    if find_spec("transformers") is None:
        raise _Refusal("RT-DETR and DINO need transformers: pip install 'radioplat[hf]'")
    detail = f"RT-DETR and DINO on maps of strides {', '.join(map(str, pyramid.strides))}"
    return detail if size % last == 0 else f"{detail}, of images whose sides are multiples of {last}"


def _prune(student: Student) -> str:
    require_plain(student.architecture)
    return "checked with random weights if the spec has a section prune"


def _low_rank(student: Student) -> str:
    if student.architecture.quantized is not None:
        raise _Refusal("a quantized student cannot be decomposed")
    if not (count := sum(splittable(m) for m in student.backbone.modules())):
        raise _Refusal("it has no linear layer and no 1x1 convolution")
    return f"{count} linear layers and 1x1 convolutions"


def _quantize(student: Student) -> str:
    if student.architecture.quantized is not None:
        raise _Refusal(
            "this student is quantized already; `distill` or `train` from its checkpoint keeps its quantizers"
        )
    if not (count := sum(isinstance(m, KINDS) and can_be_quantized(m) for m in student.backbone.modules())):
        raise _Refusal("none of its layers has a quantized form")
    return f"{count} layers of the backbone"


def _format(form: ExportFormat) -> Callable[[Student], str]:
    def check(student: Student) -> str:
        if problems := format_problems(student, form, []):
            raise _Refusal("; ".join(problem.message for problem in problems))
        return FORMATS[form].reader if form in FORMATS else "one file, with the heads in export.adaptors"

    return check


def _engine(student: Student) -> str:
    if problems := format_problems(student, ExportFormat.onnx, []):
        raise _Refusal("; ".join(problem.message for problem in problems))
    return "from its ONNX file, by gen_trt_engine"
