"""Fold Resize nodes of position tables (timm's ViTs) into constants, in files for one image size.

torch's exporter leaves them in the graph, even at the table's own size, and TensorRT supports none with antialiasing.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx
import onnxruntime

from radioplat.exporting.qdq.graph import replace_entries

RESIZE = "Resize"


def fold_resizes(model: onnx.ModelProto) -> None:
    """Replace each Resize that depends only on constants by its result on onnxruntime, in index."""
    graph = model.graph
    producers = {name: i for i, node in enumerate(graph.node) for name in node.output}
    constants = {tensor.name for tensor in graph.initializer}
    resizes = [node.output[0] for node in graph.node if node.op_type == RESIZE]
    constant = [name for name in resizes if _is_constant(name, graph, producers, constants)]
    if not constant:
        return
    results = _compute(model, constant, _ancestors(constant, graph, producers))
    for array, name in zip(results, constant, strict=True):
        graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    _keep_used(graph, {producers[name] for name in constant})


def _is_constant(name: str, graph: onnx.GraphProto, producers: dict[str, int], constants: Collection[str]) -> bool:
    """Return whether ``name`` depends on no input of the graph."""
    needed = _ancestors([name], graph, producers)
    read = {name for i in needed for name in graph.node[i].input if name}
    computed = {name for i in needed for name in graph.node[i].output}
    plain = not any(a.HasField("g") or a.graphs for i in needed for a in graph.node[i].attribute)
    return plain and read <= computed | set(constants)


def _ancestors(names: Collection[str], graph: onnx.GraphProto, producers: dict[str, int]) -> list[int]:
    """Return the indices of all nodes that ``names`` depend on, in the graph's order."""
    indices: set[int] = set()
    pending = list(names)
    while pending:
        index = producers.get(pending.pop())
        if index is not None and index not in indices:
            indices.add(index)
            pending += graph.node[index].input
    return sorted(indices)


def _compute(model: onnx.ModelProto, names: list[str], indices: list[int]):
    part = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    part.graph.name = "constants"
    part.graph.node.extend(model.graph.node[i] for i in indices)
    read = {name for node in part.graph.node for name in node.input}
    part.graph.initializer.extend(tensor for tensor in model.graph.initializer if tensor.name in read)
    part.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    types = {value.name: value.type for value in model.graph.value_info}
    for value in part.graph.output:
        if value.name in types:
            value.type.CopyFrom(types[value.name])
        else:
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    session = onnxruntime.InferenceSession(part.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(names, {})


def _keep_used(graph: onnx.GraphProto, removed: set[int]) -> None:
    """Remove the nodes ``removed``, and nodes and tensors that no node reads then."""
    read = {value.name for value in graph.output}
    nodes = []
    for index in range(len(graph.node) - 1, -1, -1):
        node = graph.node[index]
        if index not in removed and any(name in read for name in node.output):
            read.update(node.input)
            nodes.append(node)
    computed = {name for node in nodes for name in node.output}
    tensors = [tensor for tensor in graph.initializer if tensor.name in read]
    values = [value for value in graph.value_info if value.name in computed]
    for field, items in ((graph.node, nodes[::-1]), (graph.initializer, tensors), (graph.value_info, values)):
        replace_entries(field, items)
