"""Tensors of an ONNX file that would be infinite in a smaller float type."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

from radioplat.exporting.onnx.flat_student import INPUT
from radioplat.exporting.onnx.precision import EXACT, FLOAT_CODES, as_type, simulate
from radioplat.exporting.onnx.publish import save
from radioplat.exporting.qdq.graph import read_graph
from radioplat.exporting.reference_session import open_reference

_PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_LARGEST = ".largest"


def first_overflow(file: Path, data_type: str, batches: Iterable[np.ndarray], where: str) -> str | None:
    """Return the name of a tensor of an fp32 ``file`` that overflows if weights and results are in ``data_type``.

    All results of nodes are looked at: a QuantizeLinear, a Clip or a division can make what follows finite again, and
    wrong. Other constants than weights of convolutions and products may be infinite, since masks are.

    Args:
        batches: images, float32 ``[B, 3, H, W]`` in [0, 1].
        where: the field of an error.

    Returns:
        The first in the order of the graph, on the first images that show one; None if all are finite.

    Raises:
        EngineError: the file cannot be read, or onnxruntime refuses it.
    """
    model = read_graph(file, where)
    code = FLOAT_CODES[data_type]
    if name := _infinite_weight(model, code):
        return name
    simulated = simulate(file, data_type)
    names = _add_magnitudes(simulated)
    with tempfile.TemporaryDirectory(prefix="radioplat-") as scratch:
        watched = Path(scratch) / "watched.onnx"
        save(simulated, watched)
        session = open_reference(watched, where)
        for images in batches:
            largest = session.run([f"{name}{_LARGEST}" for name in names], {INPUT: images})
            for name, value in zip(names, largest, strict=True):
                if np.isfinite(value) and np.isinf(as_type(numpy_helper.from_array(value), code).astype(np.float32)):
                    return name
    return None


def _infinite_weight(model: ModelProto, code: int) -> str | None:
    """Return the name of a finite weight of a convolution or product that type ``code`` has no number for."""
    multiplied = {name for node in model.graph.node if node.op_type in _PRODUCTS for name in node.input}
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT and tensor.name in multiplied:
            finite = np.isfinite(numpy_helper.to_array(tensor))
            if not np.isfinite(as_type(tensor, code).astype(np.float32))[finite].all():
                return tensor.name
    return None


def _add_magnitudes(model: ModelProto) -> list[str]:
    """Make the largest magnitude of each result of a simulated ``model``, before it is rounded, an output."""
    names = []
    for node in list(model.graph.node):
        for output in node.output:
            if not output.endswith(EXACT):
                continue
            name = output.removesuffix(EXACT)
            names.append(name)
            magnitude, largest = f"{name}.magnitude", f"{name}{_LARGEST}"
            model.graph.node.append(helper.make_node("Abs", [output], [magnitude]))
            model.graph.node.append(helper.make_node("ReduceMax", [magnitude], [largest], keepdims=0))
            model.graph.output.append(helper.make_tensor_value_info(largest, TensorProto.FLOAT, []))
    return names
