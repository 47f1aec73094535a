"""The float twins of an ONNX file: the same graph without Q/DQ, in fp32, fp16 and bf16."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, numpy_helper

from radioplat.exporting.engines.backends.openvino import load_openvino, native_floats
from radioplat.exporting.onnx.precision import FLOAT_CODES, retype, widen
from radioplat.exporting.onnx.publish import save
from radioplat.exporting.qdq.graph import DEQUANTIZE, QUANTIZE, Graph, attribute, replace_entries
from radioplat.spec.schema.engine import EngineBackend


def write_twin(source: Path, data_type: str, path: Path) -> Path:
    """Write ``source`` in ``data_type`` and without Q/DQ to ``path``; its inputs and outputs stay float32."""
    model = onnx.load(str(source))
    remove_pairs(model)
    widen(model)
    retype(model, data_type)
    save(model, path)
    return path


def remove_pairs(model: ModelProto) -> None:
    """Remove the Q/DQ of ``model``, in place: activations are not rounded, and stored weights become floats."""
    graph = Graph(model)
    renamed: dict[str, str] = {}
    nodes, tensors = [], []
    for node in model.graph.node:
        if node.op_type == QUANTIZE:
            continue
        if node.op_type != DEQUANTIZE:
            nodes.append(node)
            continue
        before = graph.producer(node.input[0])
        if before is not None and before.op_type == QUANTIZE:
            renamed[node.output[0]] = before.input[0]
        elif (stored := graph.array(node.input[0])) is not None:
            tensors.append(numpy_helper.from_array(_floats(graph, node, stored), node.output[0]))
        else:
            nodes.append(node)
    for node in nodes:
        for i, name in enumerate(node.input):
            while name in renamed:
                name = renamed[name]
            node.input[i] = name
    for output in model.graph.output:
        if output.name in renamed:  # keep the name of the output
            nodes.append(onnx.helper.make_node("Identity", [renamed[output.name]], [output.name]))
    replace_entries(model.graph.node, nodes)
    used = {name for node in nodes for name in node.input} | {value.name for value in model.graph.output}
    kept = [tensor for tensor in (*model.graph.initializer, *tensors) if tensor.name in used]
    replace_entries(model.graph.initializer, kept)
    del model.graph.value_info[:]


def _floats(graph: Graph, node: onnx.NodeProto, stored: np.ndarray) -> np.ndarray:
    """Return the floats that a DequantizeLinear makes of a stored tensor, in the type of its scale."""
    scale, axis = graph.array(node.input[1]), attribute(node, "axis", 1)
    assert scale is not None  # a scale is stored
    zero = graph.array(node.input[2]) if len(node.input) > 2 and node.input[2] else None
    block = attribute(node, "block_size", 0)

    def along(values: np.ndarray) -> np.ndarray:
        """Make one value for each element, or one that broadcasts."""
        if block:
            repeated = np.repeat(values, block, axis)
            return np.take(repeated, range(stored.shape[axis]), axis)
        return (
            values.reshape([-1 if i == axis % stored.ndim else 1 for i in range(stored.ndim)])
            if values.ndim
            else values
        )

    wide = stored.astype(np.float32) - (along(zero.astype(np.float32)) if zero is not None else 0)
    return np.ascontiguousarray((wide * along(scale.astype(np.float32))).astype(scale.dtype))


def float_types(data_type: str, backend: EngineBackend) -> tuple[list[str], dict[str, str]]:
    """Return the float types to compare an engine of ``data_type`` with, and reasons against the others.

    ``onnxruntime`` has none in bf16 for CPUs, which is no news to anyone and gets no reason.
    """
    names, missing = [name for name in FLOAT_CODES if name != data_type], dict[str, str]()
    if backend is EngineBackend.onnxruntime:
        names = [name for name in names if name != "bf16"]
    if backend is EngineBackend.openvino:
        able = native_floats(load_openvino())
        missing = {name: f"this CPU does not compute in {name}" for name in names if name not in able}
    return [name for name in names if name not in missing], missing
