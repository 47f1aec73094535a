"""Export a trained student or detector as an ONNX file: backbone features, and the requested heads."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

from radioplat.compression.quantization.calibrate import WEIGHT
from radioplat.errors import EngineError
from radioplat.exporting.made_of import record_sources
from radioplat.exporting.onnx.compare import Agreement, Noise, compare_with_torch, drawn_images
from radioplat.exporting.onnx.dynamic_resolution import name_sides, step_of, tried_sizes
from radioplat.exporting.onnx.flat_detector import flatten
from radioplat.exporting.onnx.flat_student import Exportable, trace
from radioplat.exporting.onnx.fold_resizes import fold_resizes
from radioplat.exporting.onnx.lower_opset import TRACED, lower_opset
from radioplat.exporting.onnx.opset import choose_opset, require_readable
from radioplat.exporting.onnx.overflow import first_overflow
from radioplat.exporting.onnx.precision import parse_data_type, retype, simulate
from radioplat.exporting.onnx.publish import ONE_FILE_BYTES, open_partial_folder, publish, save
from radioplat.exporting.qdq.graph import shapes_of
from radioplat.exporting.qdq.insert import insert_pairs, remove_marks
from radioplat.exporting.qdq.lint import lint
from radioplat.exporting.qdq.mark import MODULES_NOTE
from radioplat.exporting.qdq.ranges import Range
from radioplat.exporting.qdq.report import (
    LEAST_COSINE,
    QuantizedReport,
    check_half_scales,
    student_floats,
    student_weight_only,
    write_report,
)
from radioplat.models.quantized.quantizer import in_float, quantizers
from radioplat.models.source import Source
from radioplat.models.vision_model import VisionModel
from radioplat.spec.resolved.tensorrt_version import LOWEST_OPSET, parse_version, unread_operators

# Largest difference of an fp32 file from torch, relative to the largest value, that rounding can explain.
TOLERANCE = 1e-3
# Fields of errors about the type of layers that are not quantized.
_OF_FLOATS = ("export.data_type", "export.tensorrt_version")


@dataclass(frozen=True)
class OnnxReport:
    """Result of an export.

    Attributes:
        path: the ONNX file.
        inputs, outputs: shape by name; a dynamic dimension is given by its name (``batch``). All are float32.
        opset: the operator set of the file.
        data_type: the arithmetic inside: ``fp32``, ``fp16`` or ``bf16``.
        bytes: size on disk, weights included.
        max_abs_error, max_relative_error: of the fp32 graph on onnxruntime against torch.
        precision_error: relative error of the graph rounded to ``data_type`` against torch in fp32; None for fp32.
        quantized: formats, scales and the linter's findings; None for a student in floats.
        side_files: the task's :class:`~radioplat.tasks.export.side_files.SideFiles`; None outside of the task.
        notes: deviations from the request, one sentence each.
    """

    path: Path
    inputs: dict[str, list[int | str]]
    outputs: dict[str, list[int | str]]
    opset: int
    data_type: str = "fp32"
    bytes: int = 0
    max_abs_error: float = 0.0
    max_relative_error: float = 0.0
    precision_error: float | None = None
    quantized: QuantizedReport | None = None
    side_files: Any = None
    notes: list[str] = field(default_factory=list)


def export_onnx(
    student: Exportable | VisionModel,
    path: str | Path,
    *,
    height: int,
    width: int,
    batch_size: int = -1,
    opset: int | None = None,
    tensorrt_version: str | None = None,
    dynamic_resolution: bool = False,
    adaptors: Sequence[str] = (),
    data_type: str = "fp32",
    stored_weights: bool = True,
    float_path: str | Path | None = None,
    images: np.ndarray | None = None,
    least_cosine: float = LEAST_COSINE,
    verbose: bool = False,
    sources: Sequence[Source] = (),
) -> OnnxReport:
    """Write ``student`` as ONNX, after comparing the file with torch.

    The input is ``images``, float32 ``[B, 3, height, width]`` in [0, 1]. The outputs, float32, are ``summary``
    ``[B, D]`` and ``spatial`` ``[B, h, w, D]``, of a classifier ``logits`` ``[B, C]``, then ``<adaptor>.summary`` and
    ``<adaptor>.spatial``, those that the student has; of a detector ``logits`` ``[B, Q, C]`` and ``pred_boxes``
    ``[B, Q, 4]``, centre x, centre y, width, height as shares of the image, in the order of its queries.

    Args:
        batch_size: a fixed batch size, or -1 for a dynamic one.
        dynamic_resolution: allow all image sizes whose sides are multiples of the student's stride.
        opset: at least 17, and 22 for bf16; a lower one is raised with a note. None: 18, or as needed.
        tensorrt_version: version that must support the file; None for the newest.
        adaptors: heads to add, from ``student.head_names``.
        data_type: ``fp32``, ``fp16`` or ``bf16``: the arithmetic inside; for a quantized student, of its other layers.
        stored_weights: store a quantized student's weights as quantized numbers; False: as floats before a Q/DQ pair.
        float_path: path for a second file of a quantized student, in fp32 and without Q/DQ, with the same names; its
            weights are rounded.
        images: float32 ``[N, 3, H, W]`` in [0, 1] to compare the file with torch on, all of them; None: noise.
        least_cosine: of the features of a quantized student's file with torch's, for each image and output; also with
            the other layers in ``data_type``.
        verbose: print the messages of torch's exporter.
        sources: the checkpoint that ``student`` was read from, for the file's metadata.

    Raises:
        EngineError: an unknown adaptor or data type, a student that cannot be traced at this size, a file that cannot
            be written, or one whose outputs on onnxruntime differ from torch, or that overflows in ``data_type``.
    """
    path = Path(path)
    _check_adaptors(adaptors, student.head_names)
    module = flatten(student, list(dict.fromkeys(adaptors)))
    data_type = parse_data_type(data_type, "export.data_type")
    if float_path is None:  # otherwise TensorRT reads the graph without Q/DQ
        require_readable(tensorrt_version, data_type, [format.value for format in module.formats], stored_weights)
    opset, notes = choose_opset(opset, data_type, module.formats, tensorrt_version)
    notes += module.branch_notes
    step = step_of(student) if dynamic_resolution else 0
    sizes = tried_sizes(height, width, step) if step else [(height, width)]
    outputs = [module.find_outputs(*size) for size in sizes][0]
    folder = open_partial_folder(path)
    try:
        written = folder / path.name
        program = trace(module, outputs, (batch_size, height, width), max(opset, TRACED), verbose, step)
        program.save(str(written), external_data=module.bytes > ONE_FILE_BYTES)
        float_file = folder / "float" / Path(float_path).name if float_path else None
        ranges = _rewrite(written, step, bool(module.formats), stored_weights, float_file)
        check_half_scales(ranges, data_type)
        if opset < TRACED:
            for file in (written, float_file) if float_file else (written,):
                _lower_opset(file, tensorrt_version)
        report = _describe(written, path, opset, notes)
        if batch_size <= 0 and report.inputs["images"][0] != "batch":
            raise EngineError(
                "the student's forward fixes the batch size while it is traced (`len(tensor)` does that)",
                where="export.batch_size",
                hint="Give export.batch_size, or use `tensor.shape[0]` in the student.",
            )

        batches = _steps(batch_size, 0 if images is None else len(images))

        def comparison() -> dict[str, Any]:
            """Return what all comparisons with torch have in common."""
            return module.comparison | ({} if images is None else {"noise": _drawn_from(images)})

        def check(file: Path) -> Agreement:
            """Compare a file with torch."""
            return compare_with_torch(file, module, outputs, batches=batches, sizes=sizes, **comparison())

        agreement = check(written)
        _check_agreement(agreement, path, least_cosine if ranges else None)
        if float_file is not None:
            with in_float(*(q for name, q in quantizers(module).items() if not name.endswith(WEIGHT))):
                _check_agreement(check(float_file), Path(float_path or ""), None)
        report = replace(report, max_abs_error=agreement.max_abs_error, max_relative_error=agreement.max_relative_error)
        if ranges:
            linted = lint(written, student_floats(student), student_weight_only(student))
            judged = sum(batches) if images is None else len(images)
            formats = [f.value for f in module.formats]
            quantized = QuantizedReport(formats, agreement.min_cosine, ranges, linted, judged, images is None)
            report = replace(report, quantized=quantized)
        if data_type != "fp32":
            compared = (image.numpy() for image in drawn_images(batches, sizes, comparison().get("noise")))
            rounded = _lower(written, data_type, check, compared, least_cosine if ranges else None)
            report = replace(report, data_type=data_type, precision_error=rounded.max_relative_error)
            if report.quantized:
                report = replace(report, quantized=replace(report.quantized, cosine=rounded.min_cosine))
        for file in (written, float_file) if float_file else (written,):
            record_sources(file, sources)
        onnx.checker.check_model(str(written), full_check=True)
        report = replace(report, bytes=sum(file.stat().st_size for file in folder.iterdir() if file.is_file()))
        publish(folder, path)
        if float_file is not None:
            publish(float_file.parent, Path(float_path or ""))
        if report.quantized:
            write_report(report.quantized, path)
        return report
    except OSError as error:
        raise EngineError(f"cannot write the ONNX file: {error.strerror}", where=str(path)) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def export_in_halves(student: Exportable | VisionModel, path: str | Path, **options: Any) -> OnnxReport:
    """Export as :func:`export_onnx`, with layers in fp16 that are not quantized; in bf16 or fp32 if fp16 is impossible.

    fp16 is impossible where a tensor or a scale overflows, a feature has a lower cosine than ``least_cosine``, or
    ``tensorrt_version`` reads no such file.

    Args:
        options: of :func:`export_onnx`, without ``data_type``.

    Raises:
        EngineError: as :func:`export_onnx`.
    """
    reasons = []
    for name in ("fp16", "bf16"):
        try:
            report = export_onnx(student, path, data_type=name, **options)
        except EngineError as error:
            if error.problems[0].where not in _OF_FLOATS:
                raise
            reasons.append(f"layers that are not quantized are not in {name}: {error.problems[0].message}")
        else:
            break
    else:
        report = export_onnx(student, path, **options)
    return replace(report, notes=[*reasons, *report.notes])


def _check_adaptors(adaptors: Sequence[str], names: Sequence[str]) -> None:
    for name in adaptors:
        if name not in names:
            valid = f"Valid: {', '.join(names)}." if names else "This student has no heads."
            raise EngineError(f"the student has no head named {name!r}", where="export.adaptors", hint=valid)


def _lower_opset(file: Path, tensorrt_version: str | None) -> None:
    version = parse_version(tensorrt_version or "")
    model = onnx.load(str(file))
    if version:
        lower_opset(model, f"TensorRT {tensorrt_version}", "export.tensorrt_version", unread_operators(version))
    else:
        lower_opset(model, f"operator set {LOWEST_OPSET}", "export.opset_version")
    save(model, file)


def _lower(
    file: Path,
    data_type: str,
    check: Callable[[Path], Agreement],
    batches: Iterable[np.ndarray],
    least_cosine: float | None,
) -> Agreement:
    """Rewrite ``file`` in ``data_type``; return how its numbers in this precision agree with torch's in fp32.

    Raises:
        EngineError: a tensor overflows on ``batches``, or a feature has a lower cosine than ``least_cosine``.
    """
    with tempfile.TemporaryDirectory(prefix="radioplat-") as scratch:
        rounded = Path(scratch) / "rounded.onnx"
        save(simulate(file, data_type), rounded)
        agreement = check(rounded)
    problem = ""
    if not agreement.max_relative_error < float("inf"):
        problem = f"the student overflows in {data_type}: its features are not finite"
    elif name := first_overflow(file, data_type, batches, "export.data_type"):
        problem = f"the student overflows in {data_type}: {name} is not finite, and its features are others"
    elif least_cosine is not None and not agreement.min_cosine >= least_cosine:
        problem = (
            f"a feature of the graph in {data_type} has cosine {agreement.min_cosine:.3f} with torch's (at least "
            f"{least_cosine:g} is needed: export.least_cosine)"
        )
    if problem:
        raise EngineError(problem, where="export.data_type", hint="Use bf16 or fp32.")
    model = onnx.load(str(file))
    retype(model, data_type)
    save(model, file)
    return agreement


def _rewrite(file: Path, step: int, quantized: bool, stored: bool, float_file: Path | None) -> list[Range]:
    """Clean up a traced ``file``. For a quantized student, insert Q/DQ and return the scales, and write ``float_file``
    without Q/DQ."""
    if step:
        name_sides(file)
    model, ranges = onnx.load(str(file)), []
    if not step:
        fold_resizes(model)
    if quantized:
        if float_file is not None:
            plain = onnx.ModelProto.FromString(model.SerializeToString())
            remove_marks(plain)
            float_file.parent.mkdir()
            save(plain, float_file)
        ranges = insert_pairs(model, stored)
    else:
        _drop_source_lines(model)
    save(model, file)
    return ranges


def _drop_source_lines(model: onnx.ModelProto) -> None:
    """Remove the tracer's metadata but the names of modules, which layers are found by; it contains local paths."""
    for entry in (model.graph, *model.graph.node, *model.graph.value_info):
        modules = [(note.key, note.value) for note in entry.metadata_props if note.key == MODULES_NOTE]
        del entry.metadata_props[:]
        for key, value in modules:
            entry.metadata_props.add(key=key, value=value)


def _describe(written: Path, path: Path, opset: int, notes: list[str]) -> OnnxReport:
    model = onnx.load(str(written), load_external_data=False)
    written_opset = {entry.domain: entry.version for entry in model.opset_import}.get("", 0)
    if written_opset != opset:
        message = f"torch wrote operator set {written_opset} instead of {opset}"
        raise EngineError(message, where="export.opset_version", hint=f"Use {written_opset}.")
    return OnnxReport(path, shapes_of(model.graph.input), shapes_of(model.graph.output), opset, notes=notes)


def _steps(batch_size: int, count: int) -> list[int]:
    """Return the sizes of batches that show ``count`` images to a file of ``batch_size``; 0 for as few as are needed.

    A file with a dynamic batch is tried with one image, with three, and with those that are left.
    """
    if batch_size > 0:
        return [batch_size] * max(-(-count // batch_size), 1)
    return [1, 3, *([count - 4] if count > 4 else [])]


def _drawn_from(images: np.ndarray) -> Noise:
    """Return a function that gives the next of ``images``, in the size that is asked for."""
    shown: Counter[tuple[int, int]] = Counter()

    def draw(count: int, height: int, width: int, generator: torch.Generator) -> torch.Tensor:
        """Return ``count`` images, from the first again if there are no more in this size."""
        start = shown[height, width]
        shown[height, width] += count
        chosen = torch.from_numpy(np.take(images, range(start, start + count), axis=0, mode="wrap"))
        if chosen.shape[-2:] == (height, width):
            return chosen
        return torch.nn.functional.interpolate(chosen, (height, width), mode="bilinear", antialias=True)

    return draw


def _check_agreement(agreement: Agreement, path: Path, least_cosine: float | None) -> None:
    """Refuse a file that differs from torch by more than the limit for floats, or for one that rounds."""
    if least_cosine is not None and not agreement.min_cosine >= least_cosine:
        raise EngineError(
            f"a feature of the quantized graph has cosine {agreement.min_cosine:.3f} with torch's (at least "
            f"{least_cosine:g} is needed: export.least_cosine), so the file was not written",
            where=str(path),
            hint="Is it calibrated? Wrong scales turn small differences into large ones.",
        )
    if least_cosine is None and not agreement.max_relative_error <= TOLERANCE:
        raise EngineError(
            f"output `{agreement.output}` differs from torch by {agreement.max_relative_error:.2g} of its largest "
            f"value (at most {TOLERANCE:g} is allowed), so the file was not written",
            where=str(path),
            hint="The exporter translates some operation of the student wrongly; try another export.opset_version.",
        )
