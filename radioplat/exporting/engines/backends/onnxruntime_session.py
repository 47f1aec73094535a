"""Run files of the backend ``onnxruntime``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from radioplat.errors import EngineError
from radioplat.exporting.engines.backends.onnxruntime import open_session as open_graph
from radioplat.exporting.engines.engine_runner import Run


def open_session(path: Path, record: dict[str, Any], gpu_id: int) -> tuple[str, Run]:
    """Return the name of the device, and the function that runs one batch."""
    # As bytes: onnxruntime decides by the suffix of a path how to read the file.
    session = open_graph(path.read_bytes(), "disable_all" if record["data_type"] == "fp8" else "all")
    name, outputs = session.get_inputs()[0].name, [value.name for value in session.get_outputs()]

    def run(images: np.ndarray) -> dict[str, np.ndarray]:
        try:
            return dict(zip(outputs, session.run(outputs, {name: images}), strict=True))
        except Exception as error:  # its errors have no common base class
            raise EngineError(f"onnxruntime failed: {' '.join(str(error).split())[:300]}", where=str(path)) from error

    return "cpu", run
