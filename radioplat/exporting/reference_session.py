"""Sessions of onnxruntime that compute an ONNX file as it is written, as the reference for others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from radioplat.errors import EngineError


def open_reference(path: Path, where: str) -> Any:  # noqa: ANN401
    """Return a session on the CPU without graph optimization, which changes numbers and removes tensors.

    Args:
        where: the field of the error.

    Raises:
        EngineError: onnxruntime refuses the file.
    """
    import onnxruntime
    import torch

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4  # errors are raised
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors have no common base class
        text = " ".join(str(error).split())[:400]
        raise EngineError(f"onnxruntime cannot load the file: {text}", where=where) from error
