"""The latency of an engine beside those of its float twins, as its record has it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from radioplat.common.cpu_threads import INT8_UNITS, UNITS, cpu_name
from radioplat.exporting.engines.coverage import Coverage
from radioplat.exporting.engines.engine_runner import load_engine
from radioplat.exporting.engines.latency import timer
from radioplat.exporting.latency import Latency, measure_in_turn
from radioplat.spec.schema.engine import EngineBackend


def compare_latency(
    engines: Mapping[str, Path],
    not_measured: Mapping[str, str],
    seconds: float,
    gpu_id: int = 0,
    sizes: Sequence[int] = (),
) -> dict[str, Any]:
    """Measure engines of one network on this machine, in turn.

    Args:
        engines: by data type; the first is the one whose record this is for.
        not_measured: data types without an engine, and the reason.
        seconds: of measuring, for each engine and batch size.
        sizes: of batches; none: the smallest, the best and the largest.

    Returns:
        ``device``, ``cpu``, ``threads`` and ``method``; ``batches``: by batch size and data type the
        :class:`~radioplat.exporting.latency.Latency`; ``speed_up``: by batch size and other data type, its p50
        over the engine's; ``fastest``: data type by batch size; ``not_measured``; ``warnings``: none yet.
    """
    import torch

    runners = {name: load_engine(path, gpu_id=gpu_id) for name, path in engines.items()}
    own, first = next(iter(runners.items()))
    batches: dict[str, dict[str, Latency]] = {}
    method = ""
    for size in sizes or sorted({*first.record["batch"]}):
        timers = {}
        for name, runner in runners.items():
            timers[name], method = timer(runner, size)
        batches[str(size)] = measure_in_turn(timers, seconds)
    return {
        "device": first.device,
        "cpu": cpu_name(UNITS),
        "threads": torch.get_num_threads() if first.device == "cpu" else None,
        "method": method,
        "batches": {
            size: {name: dataclasses.asdict(each) for name, each in row.items()} for size, row in batches.items()
        },
        "speed_up": {
            size: {name: round(each.p50 / row[own].p50, 3) for name, each in row.items() if name != own}
            for size, row in batches.items()
        },
        "fastest": {size: min(row, key=lambda name: row[name].p50) for size, row in batches.items()},
        "not_measured": dict(not_measured),
        "warnings": [],
    }


def warnings_of(latency: Mapping[str, Any], data_type: str, causes: list[str]) -> list[str]:
    """Return a sentence for each batch size at which another data type is faster, and then the ``causes``."""
    lines = []
    for size, fastest in latency["fastest"].items():
        if fastest != data_type:
            row = latency["batches"][size]
            images = "1 image takes" if size == "1" else f"{size} images take"
            lines.append(
                f"{data_type} is not the fastest here: {images} {row[data_type]['p50']:.3g} ms in {data_type} and "
                f"{row[fastest]['p50']:.3g} ms in {fastest}"
            )
    return [*lines, *causes] if lines else []


def is_slower(latency: Mapping[str, Any], data_type: str) -> bool:
    """Return whether another data type is faster at any batch size."""
    return any(name != data_type for name in latency["fastest"].values())


def beside_openvino(engine: Path, other: Path, size: int, seconds: float) -> str:
    """Measure an engine of onnxruntime and one of OpenVINO of the same file, in turn; return a sentence about both."""
    row = compare_latency({"onnxruntime": engine, "openvino": other}, {}, seconds, sizes=[size])["batches"][str(size)]
    ours, theirs = row["onnxruntime"]["p50"], row["openvino"]["p50"]
    images = "1 image" if size == 1 else f"{size} images"
    sentence = (
        f"OpenVINO runs this file {ours / theirs:.2g} times as fast here: {theirs:.3g} ms for {images}, {ours:.3g} in "
    )
    return f"{sentence}onnxruntime" + (" (gen_trt_engine.backend=openvino)" if theirs < ours else "")


def causes_of_slowness(
    backend: EngineBackend, covered: Coverage, latency: Mapping[str, Any], openvino: str = ""
) -> list[str]:
    """Return sentences about what can make a quantized engine slower than a float one, and what to do.

    Args:
        openvino: what was measured of the same file in OpenVINO, for an engine of onnxruntime.
    """
    causes = [openvino] if openvino and backend is EngineBackend.onnxruntime else []
    if latency["device"] == "cpu" and not any(unit in latency["cpu"] for unit in INT8_UNITS):
        causes.append("this CPU has no instructions for INT8 (AVX512-VNNI, AVX-VNNI or AMX): measure on one that has")
    if covered.in_float_kernels:
        causes.append(f"{len(covered.in_float_kernels)} quantized layers are computed in floats: `radioplat profile`")
    if covered.not_quantized:
        causes.append(f"{len(covered.not_quantized)} of {covered.eligible} layers are not quantized")
    return causes or ["rounding costs more than INT8 saves at this size: `radioplat profile` lists the layers by time"]
