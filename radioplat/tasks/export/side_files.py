"""What the task ``export`` writes beside its ONNX file: caches, ranges of every tensor, INT8 for CPUs, a bundle."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from radioplat.data.loading.sample_images import check_calibration_images, sample_images
from radioplat.errors import EngineError
from radioplat.exporting.deploy.bundle import Bundled, write_bundle
from radioplat.exporting.deploy.calibration_cache import write_cache
from radioplat.exporting.deploy.cpu_int8 import CpuReport, quantize_for_cpu
from radioplat.exporting.deploy.observe_ranges import observe
from radioplat.exporting.onnx.export import OnnxReport
from radioplat.exporting.qdq.ranges import FILE, Range, activation_scales, write_ranges
from radioplat.models.quantized.quantizer import quantizers
from radioplat.models.student.student import Student
from radioplat.spec.checks.tasks.quantize import calibration_split
from radioplat.spec.resolved.tensorrt_version import FIRST_WITHOUT_CACHE, parse_version
from radioplat.spec.schema.export import CpuTarget
from radioplat.spec.schema.root import Spec

_INT8 = {"int8"}


@dataclass(frozen=True)
class Beside:
    """What was written beside an ONNX file.

    Attributes:
        files: each with what it is.
        cpu: the file for CPUs.
    """

    files: dict[Path, str] = field(default_factory=dict)
    cpu: CpuReport | None = None


@dataclass(frozen=True)
class Needs:
    """What must be there before the ONNX file is written.

    Attributes:
        floats: where the graph without Q/DQ goes that a cache names the tensors of; None where none is needed.
        batches: calibration images, float32 ``[B, 3, H, W]`` in [0, 1]; none where none are needed.
    """

    floats: Path | None = None
    batches: list[np.ndarray] = field(default_factory=list)


def find_needs(spec: Spec, student: Student, onnx_file: Path) -> Needs:
    """Look for all that section ``export`` asks for and that may be missing, before anything is traced.

    Raises:
        EngineError: scales are asked for that the student cannot give.
        DataError: there are no calibration images, or they are of one colour.
    """
    floats = _float_file(spec, student, onnx_file)
    needed = spec.export.force_ptq or spec.export.cpu is not None
    return Needs(floats, calibration_batches(spec, _size(spec)) if needed else [])


def _float_file(spec: Spec, student: Student, onnx_file: Path) -> Path | None:
    asked, quantized = spec.export, student.architecture.quantized is not None
    if quantized and asked.cpu:
        hint = "Give the checkpoint that was quantized: onnxruntime places its own scales."
        raise EngineError("the student is quantized already", where="export.cpu", hint=hint)
    if not asked.wants_cache or asked.force_ptq:
        return None
    if not quantized:
        hint = "Run `radioplat quantize` first, or set export.force_ptq=true."
        raise EngineError("the student has no scales to cache", where="export.calibration_cache", hint=hint)
    if others := {q.format.value for n, q in quantizers(student).items() if not n.endswith("weight_quantizer")} - _INT8:
        raise EngineError(
            f"a cache holds INT8 scales, and this student is {', '.join(sorted(others))}",
            where="export.calibration_cache",
            hint="Leave it out: the Q/DQ file holds the scales.",
        )
    return onnx_file.with_name(f"{onnx_file.stem}.float.onnx")


def write_beside(spec: Spec, student: Student, report: OnnxReport, needs: Needs) -> Beside:
    """Write what section ``export`` asks for beside the ONNX file of ``report``.

    Raises:
        EngineError: something cannot be built or written.
    """
    asked, files, cpu = spec.export, dict[Path, str](), None
    floats, batches = needs.floats, needs.batches
    ranges = list(report.quantized.ranges) if report.quantized else []
    if asked.force_ptq:
        ranges, untyped = observe(report.path, batches)
        said = f"{len(ranges)} ranges, one for every float tensor"
        if untyped:
            said += f"; not for {len(untyped)} whose type cannot be told: {', '.join(untyped)}"
        files[write_ranges(ranges, report.path.with_name(FILE))] = said
    elif report.quantized:
        files[report.path.with_name(FILE)] = f"{len(ranges)} ranges"
    if floats is not None:
        files[floats] = "the graph without Q/DQ"
    cache = _cache(spec, report, ranges)
    if cache is not None:
        files[cache] = f"calibration cache for TensorRT {asked.tensorrt_version}"
    if asked.cpu is not None:
        path = report.path.with_name(f"{report.path.stem}.cpu_int8.onnx")
        cpu = quantize_for_cpu(report.path, path, asked.cpu, asked.cpu_target or CpuTarget.x86_vnni, batches)
        files[path] = "INT8 for onnxruntime on CPUs"
    if asked.bundle:
        folder = write_bundle(Path(asked.bundle), _bundled(spec, student, report, floats, cache, list(files)))
        files[folder] = "bundle"
    return Beside(files, cpu)


def calibration_batches(spec: Spec, size: tuple[int, int]) -> list[np.ndarray]:
    """Whole images of the calibration split, else train's, as the graph takes them: float32 ``[B, 3, *size]``.

    A graph of one batch size gets the last batch filled up with its first images.

    Raises:
        DataError: there are no images, or they are of one colour.
    """
    split, side = calibration_split(spec), max(size)
    count = spec.quantize.calibration_batches * spec.dataset.batch_size
    found = sample_images(spec, {side}, count, split)[side]
    check_calibration_images([found], f"dataset.{split}_dataset")
    top, left = ((side - edge) // 2 for edge in size)
    images = found[:, :, top : top + size[0], left : left + size[1]].astype(np.float32) / 255
    step = spec.export.batch_size
    if step > 0:
        images = np.resize(images, (-(-len(images) // step) * step, *images.shape[1:]))
    else:
        step = spec.dataset.batch_size
    return [images[start : start + step] for start in range(0, len(images), step)]


def _size(spec: Spec) -> tuple[int, int]:
    return spec.export.input_height or spec.dataset.img_size, spec.export.input_width or spec.dataset.img_size


def _cache(spec: Spec, report: OnnxReport, ranges: list[Range]) -> Path | None:
    """Written where it is asked for, or ``force_ptq`` is and the version has caches."""
    asked = spec.export
    version = parse_version(asked.tensorrt_version) if asked.tensorrt_version else None
    implied = asked.force_ptq and version is not None and version[0] < FIRST_WITHOUT_CACHE
    if not asked.wants_cache and not implied:
        return None
    said = (asked.calibration_cache or "true").strip()
    path = report.path.with_suffix(".cache") if said.lower() in ("true", "false") else Path(said)
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_cache(activation_scales(ranges), str(asked.tensorrt_version), path)


def _bundled(
    spec: Spec, student: Student, report: OnnxReport, floats: Path | None, cache: Path | None, files: list[Path]
) -> Bundled:
    config, one = spec.gen_trt_engine.tensorrt, spec.gen_trt_engine.batch_size
    quantized = report.quantized
    return Bundled(
        onnx_file=report.path,
        engine_file=floats or report.path,
        others=[file for file in files if file.is_file()],
        cache=cache,
        inputs=report.inputs,
        outputs=report.outputs,
        size=_size(spec),
        batches=(one,) * 3 if one > 0 else (config.min_batch_size, config.opt_batch_size, config.max_batch_size),
        step=student.stride,
        mean=student.architecture.mean,
        std=student.architecture.std,
        version=spec.export.tensorrt_version,
        data_type=report.data_type,
        formats=quantized.formats if quantized else [],
        stored_weights=spec.export.stored_weights,
    )
