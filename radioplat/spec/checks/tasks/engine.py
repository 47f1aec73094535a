"""Contradictions in section ``gen_trt_engine.tensorrt``."""

from __future__ import annotations

from collections.abc import Iterator

from radioplat.errors import Problem
from radioplat.spec.resolved.number_formats import FLOATS, QUANTIZED
from radioplat.spec.schema.engine import CalibrationConfig, TensorRTConfig

_SECTION = "gen_trt_engine.tensorrt"


def engine_problems(config: TensorRTConfig) -> Iterator[Problem]:
    """Fields of ``config`` that contradict each other, whatever builds the engine."""
    sizes = config.min_batch_size, config.opt_batch_size, config.max_batch_size
    if not sizes[0] <= sizes[1] <= sizes[2]:
        message = "batch sizes must satisfy min <= opt <= max, not " + ", ".join(map(str, sizes))
        yield Problem(message, f"{_SECTION}.{{min,opt,max}}_batch_size")
    yield from _calibration(config)
    for i, rule in enumerate(config.layers_precision):
        pattern, _, precision = rule.rpartition(":")
        if not pattern.strip():
            message = f"a pattern and a precision as pattern:fp16 are needed, not {rule!r}"
            yield Problem(message, f"{_SECTION}.layers_precision[{i}]")
        elif precision.strip().lower() not in FLOATS:
            hint = f"Valid: {', '.join(FLOATS)}."
            if precision.strip().lower() in QUANTIZED:
                hint += " Quantized layers need ranges: name them in quantize.layers and export again."
            yield Problem(f"{precision!r} is no precision of a layer", f"{_SECTION}.layers_precision[{i}]", hint)


def _calibration(config: TensorRTConfig) -> Iterator[Problem]:
    asked, defaults, where = config.calibration, CalibrationConfig(), f"{_SECTION}.calibration"
    for name in ("cal_batch_size", "cal_batches"):
        if getattr(asked, name) != getattr(defaults, name) and not asked.cal_image_dir:
            yield Problem("is for images of cal_image_dir, and none is given", f"{where}.{name}", "Give the folder.")
    sources = asked.cal_image_dir or asked.cal_cache_file or asked.cal_json_file
    if sources and config.data_type.strip().lower() != "int8":
        hint = f"Set {_SECTION}.data_type=int8, or remove {where}."
        yield Problem(f"ranges are for int8, not {config.data_type}", where, hint)
    if asked.cal_json_file and (asked.cal_image_dir or asked.cal_cache_file):
        hint = "Leave out cal_json_file, or cal_cache_file and cal_image_dir."
        yield Problem("ranges come from two places", f"{where}.cal_json_file", hint)
