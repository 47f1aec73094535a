"""Run a finished engine once and compare it with the ONNX file that it was built from."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from radioplat.common.cpu_threads import UNITS, cpu_name
from radioplat.errors import EngineError, Problem
from radioplat.exporting.engines.backends.onnxruntime import open_session
from radioplat.exporting.engines.engine_record import mark_executed, mark_not_executed
from radioplat.exporting.engines.engine_runner import load_engine

# Below it an engine is another function than its file. On noise, INT8 with weights of 7 bits has 0.97 or more, and INT8
# whose products overflow 0.5 to 0.7.
_UNLIKE = 0.9


def try_execution(engine: Path, source: Path, gpu_id: int = 0) -> dict[str, Any]:
    """Execute ``engine`` on noise images, compare it with ``source`` on onnxruntime, and update the record.

    An engine that cannot run on this machine is not an error: the record then contains the reason.

    Returns:
        The updated record. ``execution`` has ``device, batch, seconds`` of the first call, on a CPU its name, ``cpu``,
        and if onnxruntime can run the source, ``max_abs_error``, ``max_relative_error`` (relative to the output's
        largest value) and ``least_cosine`` (of an image's output with the source's). A ``warning`` says that the two
        are unlike.
    """
    try:
        runner = load_engine(engine, gpu_id=gpu_id)
        batch, shape = runner.record["batch"][1], runner.record["input_shape"]
        images = np.random.default_rng(0).random((batch, *shape), dtype=np.float32)
        start = time.monotonic()
        outputs = runner(images)
        seconds = round(time.monotonic() - start, 4)
    except EngineError as error:
        # Without `where`: a record contains no paths of this machine.
        return mark_not_executed(engine, str(Problem(error.problems[0].message, hint=error.problems[0].hint)))
    execution = {"device": runner.device, "by": "gen_trt_engine", "batch": batch, "seconds": seconds}
    if runner.device == "cpu":
        execution["cpu"] = cpu_name(UNITS)
    if infinite := [name for name, value in outputs.items() if not np.isfinite(value).all()]:
        execution["reason"] = f"output {infinite[0]} is not finite"
        return mark_executed(engine, execution)
    try:
        session = open_session(source, "disable_all")
        expected = session.run(list(outputs), {session.get_inputs()[0].name: images})
    except Exception as error:  # onnxruntime's errors have no common base class; EngineError if it cannot open the file
        execution["reason"] = f"not compared: {' '.join(str(error).split())[:300]}"
        return mark_executed(engine, execution)
    gaps = [np.abs(value - other).max() for value, other in zip(outputs.values(), expected, strict=True)]
    largest = [max(float(np.abs(other).max()), 1e-6) for other in expected]
    execution["max_abs_error"] = float(max(gaps))
    execution["max_relative_error"] = float(max(gap / most for gap, most in zip(gaps, largest, strict=True)))
    pairs = zip(outputs.values(), expected, strict=True)
    execution["least_cosine"] = least = round(min(_least_cosine(value, other) for value, other in pairs), 5)
    if least < _UNLIKE:
        execution["warning"] = (
            f"on noise this engine's outputs have a cosine of only {least:.2f} with the ONNX file's on onnxruntime: it "
            "computes something else; evaluate it before it is used, or build it with another backend"
        )
    return mark_executed(engine, execution)


def _least_cosine(value: np.ndarray, other: np.ndarray) -> float:
    """Return the least cosine over images ``[B, ...]``; 1 where both are zero."""
    a, b = (array.reshape(len(array), -1).astype(np.float64) for array in (value, other))
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    cosines = (a * b).sum(1) / np.where(norms > 0, norms, 1)
    return float(np.where(norms > 0, cosines, np.all(a == b, axis=1)).min())
