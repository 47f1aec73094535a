"""Tables resized to the images, as timm's ViTs resize theirs: in a file for images of one size they are constants.

torch's exporter leaves the Resize in the graph, at the table's own size too, and TensorRT reads none with antialiasing.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx
import onnxruntime

RESIZE = "Resize"


def fold_resizes(model: onnx.ModelProto) -> None:
    """Put its result in the place of each Resize that follows from constants alone, in place, as onnxruntime has it."""
    graph = model.graph
    makers = {name: i for i, node in enumerate(graph.node) for name in node.output}
    constants = {tensor.name for tensor in graph.initializer}
    resizes = [node.output[0] for node in graph.node if node.op_type == RESIZE]
    asked = [name for name in resizes if _follows(name, graph, makers, constants)]
    if not asked:
        return
    results = _compute(model, asked, _behind(asked, graph, makers))
    for array, name in zip(results, asked, strict=True):
        graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    _keep_used(graph, {makers[name] for name in asked})


def _follows(name: str, graph: onnx.GraphProto, makers: dict[str, int], constants: Collection[str]) -> bool:
    """Whether ``name`` depends on no input of the graph."""
    needed = _behind([name], graph, makers)
    read = {name for i in needed for name in graph.node[i].input if name}
    made = {name for i in needed for name in graph.node[i].output}
    plain = not any(a.HasField("g") or a.graphs for i in needed for a in graph.node[i].attribute)
    return plain and read <= made | set(constants)


def _behind(names: Collection[str], graph: onnx.GraphProto, makers: dict[str, int]) -> list[int]:
    """The nodes that ``names`` are made by, in the graph's order."""
    found: set[int] = set()
    open_names = list(names)
    while open_names:
        place = makers.get(open_names.pop())
        if place is not None and place not in found:
            found.add(place)
            open_names += graph.node[place].input
    return sorted(found)


def _compute(model: onnx.ModelProto, names: list[str], places: list[int]):
    part = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    part.graph.name = "constants"
    part.graph.node.extend(model.graph.node[i] for i in places)
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


def _keep_used(graph: onnx.GraphProto, gone: set[int]) -> None:
    """Drop the nodes that are ``gone``, and what then nobody reads."""
    read = {value.name for value in graph.output}
    kept = []
    for place in range(len(graph.node) - 1, -1, -1):
        node = graph.node[place]
        if place not in gone and any(name in read for name in node.output):
            read.update(node.input)
            kept.append(node)
    made = {name for node in kept for name in node.output}
    tensors = [tensor for tensor in graph.initializer if tensor.name in read]
    values = [value for value in graph.value_info if value.name in made]
    for field, items in ((graph.node, kept[::-1]), (graph.initializer, tensors), (graph.value_info, values)):
        items = [type(item).FromString(item.SerializeToString()) for item in items]
        del field[:]
        field.extend(items)
