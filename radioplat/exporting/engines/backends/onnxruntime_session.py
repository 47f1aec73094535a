"""Run files of the backend ``onnxruntime``."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from radioplat.exporting.engines.backends.onnxruntime import open_session as open_graph
from radioplat.exporting.engines.engine_runner import Run
from radioplat.exporting.engines.interface import LayerTime, naming_failures

_TIME = "_kernel_time"
_FORMATS = {"float": "fp32", "float16": "fp16", "int8": "int8", "uint8": "int8"}


def open_session(path: Path, record: dict[str, Any], gpu_id: int) -> tuple[str, Run]:
    """Return the name of the device, and the function that runs one batch."""
    session = open_graph(path.read_bytes(), _level(record))  # bytes: it decides by a path's suffix how to read it
    name, outputs = session.get_inputs()[0].name, [value.name for value in session.get_outputs()]

    def run(images: np.ndarray) -> dict[str, np.ndarray]:
        """Return the features of a batch by output."""
        with naming_failures("onnxruntime", path):
            return dict(zip(outputs, session.run(outputs, {name: images}), strict=True))

    def bound(images: np.ndarray) -> Callable[[], object]:
        """Return a call that computes these images, whose array stays the input."""
        binding = session.io_binding()
        binding.bind_cpu_input(name, images)
        for output in outputs:
            binding.bind_output(output)

        def call(_kept: np.ndarray = images) -> None:  # the array lives as long as the function
            """Compute them."""
            with naming_failures("onnxruntime", path):
                session.run_with_iobinding(binding)

        return call

    run.bound = bound  # type: ignore[attr-defined]
    return "cpu", run


def time_layers(path: Path, record: dict[str, Any], gpu_id: int, images: np.ndarray, calls: int) -> list[LayerTime]:
    """Run ``images`` so many times; return the mean time of each node, in the order of execution."""
    with tempfile.TemporaryDirectory(prefix="radioplat-") as scratch:
        session = open_graph(path.read_bytes(), _level(record), times=str(Path(scratch) / "times"))
        name = session.get_inputs()[0].name
        for _ in range(calls + 1):
            session.run(None, {name: images})
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    rows: dict[str, list[dict[str, Any]]] = {}
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith(_TIME):
            rows.setdefault(event["name"].removesuffix(_TIME), []).append(event)
    layers = []
    for node, of_node in rows.items():
        measured = of_node[-calls * max(1, len(of_node) // (calls + 1)) :]  # without the first call
        arguments = measured[-1]["args"]
        milliseconds = sum(event["dur"] for event in measured) / 1000 / calls
        reads, writes = (_format(arguments.get(key)) for key in ("input_type_shape", "output_type_shape"))
        layers.append(LayerTime(node, arguments.get("op_name", ""), milliseconds, reads, writes))
    return layers


def _level(record: dict[str, Any]) -> str:
    return "disable_all" if record["data_type"] == "fp8" else "all"


def _format(types: list[dict[str, Any]] | None) -> str:
    """Return our name of the type of the first of ``types``, one mapping of type to shape for each tensor."""
    first = next(iter(types[0]), "") if types else ""
    return _FORMATS.get(first, first)
