"""Run files of the backend ``openvino``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from radioplat.errors import EngineError
from radioplat.exporting.engines.backends.openvino import compile_model, load_openvino, precision_hint, unpacked
from radioplat.exporting.engines.engine_runner import Run


def open_session(path: Path, record: dict[str, Any], gpu_id: int) -> tuple[str, Run]:
    """Return the name of the device, and the function that runs one batch."""
    openvino = load_openvino()
    try:
        graph, weights = unpacked(path.read_bytes())
        model = openvino.Core().read_model(model=graph, weights=weights)
        compiled = compile_model(openvino, model, precision_hint(record["types"]))
    except Exception as error:  # its errors have no common base class
        raise EngineError(f"OpenVINO cannot open it: {_line(error)}", where=str(path)) from error
    outputs = [output.get_any_name() for output in compiled.outputs]
    request = compiled.create_infer_request()

    def run(images: np.ndarray) -> dict[str, np.ndarray]:
        try:
            request.infer([images], share_inputs=True)
        except Exception as error:
            raise EngineError(f"OpenVINO failed: {_line(error)}", where=str(path)) from error
        values = (np.array(request.get_output_tensor(i).data, np.float32) for i in range(len(outputs)))
        return dict(zip(outputs, values, strict=True))

    return "cpu", run


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
