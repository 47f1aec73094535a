"""Files that the task ``export`` writes with its ONNX file: cache, ranges of all tensors, INT8 for CPUs, a bundle."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from radioplat.common import terminal
from radioplat.data.loading.sample_images import check_calibration_images, sample_images
from radioplat.errors import EngineError, RadioplatError
from radioplat.exporting.deploy.bundle import Bundled, write_bundle
from radioplat.exporting.deploy.calibration_cache import write_cache
from radioplat.exporting.deploy.cpu_int8 import CpuReport, quantize_for_cpu
from radioplat.exporting.deploy.observe_ranges import observe
from radioplat.exporting.deploy.trtexec import FIRST_STRONGLY_TYPED
from radioplat.exporting.onnx.export import OnnxReport
from radioplat.exporting.onnx.opset import NEWEST
from radioplat.exporting.onnx.overflow import first_overflow
from radioplat.exporting.qdq.ranges import FILE, Range, activation_scales, write_ranges
from radioplat.models.quantized.quantizer import quantizers
from radioplat.models.student.student import Student
from radioplat.spec.checks.tasks.quantize import calibration_split
from radioplat.spec.resolved.tensorrt_version import FIRST_WITHOUT_CACHE, parse_version
from radioplat.spec.schema.export import CpuTarget
from radioplat.spec.schema.root import Spec

_INT8 = {"int8"}
JUDGED = 8  # images that a file is compared on


@dataclass(frozen=True)
class SideFiles:
    """Files written with an ONNX file.

    Attributes:
        files: description by path.
        cpu: report of the file for CPUs.
    """

    files: dict[Path, str] = field(default_factory=dict)
    cpu: CpuReport | None = None


@dataclass(frozen=True)
class Needs:
    """Requirements of the side files, found before the ONNX file is written.

    Attributes:
        floats: path for the graph without Q/DQ, whose tensor names a cache uses; None if not needed.
        batches: calibration images, float32 ``[B, 3, H, W]`` in [0, 1]; empty if not needed.
        judged: a few of them, that the file of a quantized student is compared on; None for other students, and where
            there are no images.
    """

    floats: Path | None = None
    batches: list[np.ndarray] = field(default_factory=list)
    judged: np.ndarray | None = None


def find_needs(spec: Spec, student: Student, onnx_file: Path) -> Needs:
    """Check and load everything that the side files of section ``export`` need, before tracing.

    Raises:
        EngineError: a side file needs scales that the student does not have.
        DataError: there are no calibration images, or they are of one colour.
    """
    floats = _float_file(spec, student, onnx_file)
    needed = spec.export.force_ptq or spec.export.cpu is not None
    judged = _judged(spec) if quantizers(student) and not spec.export.force_ptq else None
    return Needs(floats, calibration_batches(spec, _size(spec)) if needed else [], judged)


def _judged(spec: Spec) -> np.ndarray | None:
    """Return a few calibration images; None where the spec names none, or they are not on this machine."""
    split = getattr(spec.dataset, f"{calibration_split(spec)}_dataset")
    if not split.tar_data_sources and not split.images_dir:
        return None
    try:
        return np.concatenate(calibration_batches(spec, _size(spec), JUDGED))[:JUDGED]
    except RadioplatError as error:
        terminal.note(f"the file is compared with torch on noise, not on calibration images: {error.problems[0]}")
        return None


def _float_file(spec: Spec, student: Student, onnx_file: Path) -> Path | None:
    config, quantized = spec.export, student.architecture.quantized is not None
    if quantized and config.cpu:
        hint = "Use the checkpoint from before quantization: onnxruntime computes its own scales."
        raise EngineError("the student is quantized already", where="export.cpu", hint=hint)
    if not config.wants_cache or config.force_ptq:
        return None
    if not quantized:
        hint = "Run `radioplat quantize` first, or set export.force_ptq=true."
        raise EngineError("the student has no scales to cache", where="export.calibration_cache", hint=hint)
    if others := {q.format.value for n, q in quantizers(student).items() if not n.endswith("weight_quantizer")} - _INT8:
        raise EngineError(
            f"a cache contains INT8 scales, and this student is {', '.join(sorted(others))}",
            where="export.calibration_cache",
            hint="Leave it out: the Q/DQ file contains the scales.",
        )
    return onnx_file.with_name(f"{onnx_file.stem}.float.onnx")


def write_side_files(spec: Spec, student: Student, report: OnnxReport, needs: Needs) -> SideFiles:
    """Write the files that section ``export`` requests with the ONNX file of ``report``.

    Raises:
        EngineError: something cannot be built or written.
    """
    config, files, cpu = spec.export, dict[Path, str](), None
    floats, batches = needs.floats, needs.batches
    ranges = list(report.quantized.ranges) if report.quantized else []
    if config.force_ptq:
        ranges, untyped = observe(report.path, batches, spec.quantize)
        description = f"{len(ranges)} ranges, one for every float tensor"
        if untyped:
            description += f"; not for {len(untyped)} of unknown type: {', '.join(untyped)}"
        files[write_ranges(ranges, report.path.with_name(FILE))] = description
    elif report.quantized:
        files[report.path.with_name(FILE)] = f"{len(ranges)} ranges"
    if floats is not None:
        files[floats] = "the graph without Q/DQ"
    cache = _cache(spec, report, ranges)
    if cache is not None:
        files[cache] = f"calibration cache for TensorRT {config.tensorrt_version}"
    if config.cpu is not None:
        path = report.path.with_name(f"{report.path.stem}.cpu_int8.onnx")
        cpu = quantize_for_cpu(report.path, path, config.cpu, config.cpu_target or CpuTarget.x86_vnni, batches)
        files[path] = "INT8 for onnxruntime on CPUs"
    if config.bundle:
        data_type, note = _float_type_of_engines(spec, report, needs, floats, cache)
        content = _bundled(spec, student, report, floats, cache, list(files), data_type)
        files[write_bundle(Path(config.bundle), content)] = f"bundle{note}"
    return SideFiles(files, cpu)


def calibration_batches(spec: Spec, size: tuple[int, int], most: int | None = None) -> list[np.ndarray]:
    """Load whole images of the calibration split, else train's, in the graph's form: float32 ``[B, 3, *size]``.

    For a graph with a fixed batch size, the last batch is filled with the first images.

    Args:
        most: number of images; None: those of ``quantize.calibration_batches``.

    Raises:
        DataError: there are no images, or they are of one colour.
    """
    split, side = calibration_split(spec), max(size)
    count = most or spec.quantize.calibration_batches * spec.dataset.batch_size
    squares = sample_images(spec, {side}, count, split)[side]
    check_calibration_images([squares], f"dataset.{split}_dataset")
    top, left = ((side - edge) // 2 for edge in size)
    images = squares[:, :, top : top + size[0], left : left + size[1]].astype(np.float32) / 255
    return _in_batches(images, spec.export.batch_size) or _cut(images, spec.dataset.batch_size)


def _in_batches(images: np.ndarray, size: int) -> list[np.ndarray]:
    """Return batches of a graph's fixed size, the last one filled with the first images; none if it has none (-1)."""
    if size <= 0:
        return []
    return _cut(np.resize(images, (-(-len(images) // size) * size, *images.shape[1:])), size)


def _cut(images: np.ndarray, step: int) -> list[np.ndarray]:
    return [images[start : start + step] for start in range(0, len(images), step)]


def _size(spec: Spec) -> tuple[int, int]:
    return spec.export.input_height or spec.dataset.img_size, spec.export.input_width or spec.dataset.img_size


def _cache(spec: Spec, report: OnnxReport, ranges: list[Range]) -> Path | None:
    """Write the cache if it is requested, or if ``force_ptq`` is and the TensorRT version has caches."""
    config = spec.export
    version = parse_version(config.tensorrt_version) if config.tensorrt_version else None
    implied = config.force_ptq and version is not None and version[0] < FIRST_WITHOUT_CACHE
    if not config.wants_cache and not implied:
        return None
    name = (config.calibration_cache or "true").strip()
    path = report.path.with_suffix(".cache") if name.lower() in ("true", "false") else Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_cache(activation_scales(ranges), str(config.tensorrt_version), path)


def _float_type_of_engines(
    spec: Spec, report: OnnxReport, needs: Needs, floats: Path | None, cache: Path | None
) -> tuple[str, str]:
    """Return the type of what is not quantized in an engine of the bundle, and a note for its description.

    TensorRT 8, and 9 and 10 with a cache, choose a type for each layer among those that they may use: fp16 is one of
    them unless a tensor overflows in it.
    """
    version = parse_version(spec.export.tensorrt_version or "") or NEWEST
    chooses = cache is not None or (report.quantized and version[0] < FIRST_STRONGLY_TYPED)
    if not chooses or spec.export.data_type is not None or report.data_type != "fp32":
        return report.data_type, ""
    images = needs.judged
    if images is None:
        images = np.random.default_rng(0).random((2, 3, *_size(spec)), dtype=np.float32)
    batches = needs.batches[:1] or _in_batches(images, spec.export.batch_size) or [images]
    tensor = first_overflow(floats or report.path, "fp16", batches, "export.bundle")
    return ("fp16", "") if tensor is None else ("fp32", f"; its engine has no fp16, in which {tensor} overflows")


def _bundled(
    spec: Spec,
    student: Student,
    report: OnnxReport,
    floats: Path | None,
    cache: Path | None,
    files: list[Path],
    data_type: str,
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
        data_type=data_type,
        formats=quantized.formats if quantized else [],
        stored_weights=spec.export.stored_weights,
    )
