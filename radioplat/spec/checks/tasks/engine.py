"""Contradictions in section ``gen_trt_engine.tensorrt``."""

from __future__ import annotations

from collections.abc import Iterator

from radioplat.common.imports import TENSORRT, missing_extra, missing_tensorrt
from radioplat.errors import Problem
from radioplat.spec.checks.unused_fields import unused_fields
from radioplat.spec.resolved.number_formats import FLOATS, QUANTIZED
from radioplat.spec.schema.engine import EngineBackend, TensorRTConfig
from radioplat.spec.schema.root import Spec

_SECTION = "gen_trt_engine.tensorrt"


def engine_packages(spec: Spec) -> Iterator[Problem]:
    """Yield a problem for a package that ``gen_trt_engine`` needs and that is not installed."""
    yield from missing_extra("onnx", "an engine, which is built from an ONNX file,", "gen_trt_engine.backend")
    yield from backend_packages(spec)


def backend_packages(spec: Spec) -> Iterator[Problem]:
    """Yield a problem for the library of ``gen_trt_engine.backend`` if it is not installed."""
    backend, where = spec.gen_trt_engine.backend, "gen_trt_engine.backend"
    if backend is EngineBackend.openvino:
        yield from missing_extra("openvino", "backend openvino", where)
    elif backend.value in TENSORRT:
        yield from missing_tensorrt(backend.value, where)


def engine_problems(config: TensorRTConfig) -> Iterator[Problem]:
    """Yield problems of ``config`` that do not depend on the builder of the engine."""
    sizes = config.min_batch_size, config.opt_batch_size, config.max_batch_size
    if not sizes[0] <= sizes[1] <= sizes[2]:
        message = "batch sizes must satisfy min <= opt <= max, not " + ", ".join(map(str, sizes))
        yield Problem(message, f"{_SECTION}.{{min,opt,max}}_batch_size")
    yield from _calibration(config)
    for i, rule in enumerate(config.layers_precision):
        pattern, _, precision = rule.rpartition(":")
        if not pattern.strip():
            message = f"expected pattern:fp16, or another precision, not {rule!r}"
            yield Problem(message, f"{_SECTION}.layers_precision[{i}]")
        elif precision.strip().lower() not in FLOATS:
            hint = f"Valid: {', '.join(FLOATS)}."
            if precision.strip().lower() in QUANTIZED:
                hint += " Quantized layers need ranges: name them in quantize.layers and export again."
            yield Problem(f"{precision!r} is not a precision of a layer", f"{_SECTION}.layers_precision[{i}]", hint)


def _calibration(config: TensorRTConfig) -> Iterator[Problem]:
    calibration, where = config.calibration, f"{_SECTION}.calibration"
    if not calibration.cal_image_dir:
        message = "it applies to images of cal_image_dir, which is not set"
        yield from unused_fields(calibration, ("cal_batch_size", "cal_batches"), where, message, "Give the folder.")
    sources = calibration.cal_image_dir or calibration.cal_cache_file or calibration.cal_json_file
    if sources and config.data_type.strip().lower() != "int8":
        hint = f"Set {_SECTION}.data_type=int8, or remove {where}."
        yield Problem(f"ranges are for int8, not {config.data_type}", where, hint)
    if calibration.cal_json_file and (calibration.cal_image_dir or calibration.cal_cache_file):
        hint = "Leave out cal_json_file, or cal_cache_file and cal_image_dir."
        yield Problem("two sources of ranges are given", f"{where}.cal_json_file", hint)
