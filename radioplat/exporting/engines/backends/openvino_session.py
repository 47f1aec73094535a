"""Run files of the backend ``openvino``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from radioplat.errors import EngineError
from radioplat.exporting.engines.backends.openvino import (
    compile_model,
    layer_facts,
    load_openvino,
    our_format,
    precision_hint,
    unpacked,
)
from radioplat.exporting.engines.engine_runner import Run
from radioplat.exporting.engines.interface import LayerTime, naming_failures


def open_session(path: Path, record: dict[str, Any], gpu_id: int) -> tuple[str, Run]:
    """Return the name of the device, and the function that runs one batch."""
    compiled: dict[int, Any] = {}
    requests: dict[int, Any] = {}

    def request_for(size: int) -> Any:  # noqa: ANN401
        """Return a request that is compiled for this number of images alone.

        That is faster than one for any number, and with INT8 and AMX that one ends the process (OpenVINO issue 37577).
        """
        if size not in requests:
            compiled[size] = _compiled(path, record, size)
            requests[size] = compiled[size].create_infer_request()
        return requests[size]

    request_for(record["batch"][1])
    # An output may have several names: that of the file, and those of tensors that OpenVINO merged with it.
    names = [output.get_names() for output in compiled[record["batch"][1]].outputs]
    outputs = [next((name for name in record["outputs"] if name in each), min(each)) for each in names]

    def run(images: np.ndarray) -> dict[str, np.ndarray]:
        """Return the features of a batch by output."""
        with naming_failures("OpenVINO", path):
            request = request_for(len(images))
            request.infer([images], share_inputs=True, share_outputs=True)
        values = (np.array(request.get_output_tensor(i).data, np.float32) for i in range(len(outputs)))
        return dict(zip(outputs, values, strict=True))

    def bound(images: np.ndarray) -> Callable[[], object]:
        """Return a call that computes these images, whose array stays the input."""
        with naming_failures("OpenVINO", path):
            request, tensor = request_for(len(images)), load_openvino().Tensor(images, shared_memory=True)
            request.set_input_tensor(tensor)

        def call(_kept: object = tensor) -> None:  # the tensor lives as long as the function
            """Compute them."""
            with naming_failures("OpenVINO", path):
                request.infer()

        return call

    run.bound = bound  # type: ignore[attr-defined]
    return "cpu", run


def time_layers(path: Path, record: dict[str, Any], gpu_id: int, images: np.ndarray, calls: int) -> list[LayerTime]:
    """Run ``images`` so many times; return the mean time of each layer, in the order of execution."""
    compiled = _compiled(path, record, len(images), timed=True)
    request, facts = compiled.create_infer_request(), layer_facts(compiled)
    request.infer([images])  # the first call also allocates memory
    total: dict[str, float] = {}
    for _ in range(calls):
        request.infer([images])
        for row in request.profiling_info:
            total[row.node_name] = total.get(row.node_name, 0.0) + row.real_time.total_seconds()
    rows = []
    for name, seconds in total.items():
        of_layer = facts.get(name, {})
        reads, writes = (our_format(of_layer.get(key, "")) for key in ("reads", "outputPrecisions"))
        if seconds:
            rows.append(LayerTime(name, of_layer.get("layerType", ""), 1000 * seconds / calls, reads, writes))
    return rows


def _compiled(path: Path, record: dict[str, Any], size: int, timed: bool = False) -> Any:  # noqa: ANN401
    """Prepare the engine for ``size`` images."""
    openvino = load_openvino()
    try:
        graph, weights = unpacked(path.read_bytes())
        model = openvino.Core().read_model(model=graph, weights=weights)
        model.reshape([size, *record["input_shape"]])
        return compile_model(openvino, model, precision_hint(record["types"], record.get("rest")), timed)
    except Exception as error:  # its errors have no common base class
        raise EngineError(f"OpenVINO cannot open it: {_line(error)}", where=str(path)) from error


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
