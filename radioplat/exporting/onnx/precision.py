"""The arithmetic an ONNX file is typed for.

A strongly typed engine computes in the types its ONNX file states, so fp16 and bf16 are made here, not in the builder.
The finished fp32 graph is retyped rather than the torch module converted first: by then the exporter has folded
BatchNorm in fp32 (folding a bf16 graph leaves fp32 weights beside bf16 inputs, which no builder accepts), and a
student that casts inside its forward needs no second code path.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from radioplat.errors import EngineError
from radioplat.spec.resolved.number_formats import DATA_TYPES, FLOATS

# ONNX's numbers of the types that a graph may compute in.
FLOAT_CODES: dict[str, int] = {name: getattr(TensorProto, DATA_TYPES[name].onnx_type) for name in FLOATS}
# Inputs that ONNX defines as float32 whatever the data: Resize's region and scales.
ALWAYS_FLOAT = {"Resize": (1, 2)}


def parse_data_type(text: str, where: str) -> str:
    """``fp32``, ``fp16`` or ``bf16``, in any case (TAO writes ``FP16``).

    Raises:
        EngineError: for any other name; ``where`` is the field it came from.
    """
    name = text.strip().lower()
    if name in FLOATS:
        return name
    hint = f"Valid: {', '.join(FLOATS)}."
    if name == "int8":
        hint += " An int8 engine comes from an ONNX file that `quantize` wrote; give the data type of its other layers."
    raise EngineError(f"{text!r} is not a data type an engine can be built for", where=where, hint=hint)


def stored_data_type(model: ModelProto) -> str | None:
    """The float type that holds most of the weights of ``model`` (external data need not be loaded).

    Returns:
        ``fp32``, ``fp16``, ``bf16``, or None where the file has no float weights.
    """
    names = {code: name for name, code in FLOAT_CODES.items()}
    sizes: Counter[str] = Counter()
    for tensor in _tensors(model.graph):
        if tensor.data_type in names:
            sizes[names[tensor.data_type]] += int(np.prod(tensor.dims, dtype=np.int64))
    return sizes.most_common(1)[0][0] if sizes else None


def retype(model: ModelProto, data_type: str) -> None:
    """Make an fp32 ``model`` compute in ``data_type``, in place; its inputs and outputs stay fp32.

    So a client sees one interface at any precision (and bf16 has no numpy type to feed).
    """
    code, graph = FLOAT_CODES[data_type], model.graph
    if code == TensorProto.FLOAT:
        return
    outside = [value.name for value in list(graph.input) + list(graph.output)]
    _retype_graph(graph, code)
    for node in _nodes(graph):
        _rename(node, {name: f"{name}.{data_type}" for name in outside})
    into = [_cast(v.name, f"{v.name}.{data_type}", code) for v in graph.input]
    out = [_cast(f"{v.name}.{data_type}", v.name, TensorProto.FLOAT) for v in graph.output]
    nodes = list(graph.node)
    del graph.node[:]
    graph.node.extend(into + nodes + out)


def simulate(file: Path, data_type: str) -> ModelProto:
    """The fp32 model in ``file``, still in fp32, made to round every weight and every node's result to ``data_type``.

    It runs where the real thing has no kernels (bf16 on a CPU), and tells what the precision costs. Sums inside a node
    stay fp32, as they do on a GPU.
    """
    code, model = FLOAT_CODES[data_type], onnx.load(str(file))
    for tensor in _tensors(model.graph):
        if tensor.data_type == TensorProto.FLOAT:
            _replace(tensor, as_type(tensor, code).astype(np.float32))
    # Types need no weights, and inference takes no model beyond protobuf's 2 GiB.
    typed = onnx.shape_inference.infer_shapes(onnx.load(str(file), load_external_data=False)).graph
    values = list(typed.value_info) + list(typed.output)
    floats = {value.name for value in values if value.type.tensor_type.elem_type == TensorProto.FLOAT}
    graph, nodes = model.graph, list[NodeProto]()
    for node in graph.node:
        nodes.append(node)
        for i, name in enumerate(node.output):
            if name in floats:
                node.output[i] = f"{name}.exact"
                nodes.append(_cast(f"{name}.exact", f"{name}.rounded", code))
                nodes.append(_cast(f"{name}.rounded", name, TensorProto.FLOAT))
    del graph.node[:]
    graph.node.extend(nodes)
    return model


def _retype_graph(graph: GraphProto, code: int) -> None:
    kept = {node.input[i] for node in _nodes(graph) for i in ALWAYS_FLOAT.get(node.op_type, ()) if i < len(node.input)}
    kept_constants = {id(a.t) for n in _nodes(graph) if kept.intersection(n.output) for a in n.attribute}
    for tensor in _tensors(graph):
        if tensor.data_type == TensorProto.FLOAT and tensor.name not in kept and id(tensor) not in kept_constants:
            _replace(tensor, as_type(tensor, code))
    for node in _nodes(graph):
        for attribute in node.attribute:
            if attribute.name in ("to", "dtype") and attribute.i == TensorProto.FLOAT:
                attribute.i = code
    # Intermediate types follow from the rest; stale ones would contradict it.
    for inner in _graphs(graph):
        del inner.value_info[:]


def _graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """``graph`` and the bodies of its control flow."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from _graphs(attribute.g)


def _nodes(graph: GraphProto) -> Iterator[NodeProto]:
    for inner in _graphs(graph):
        yield from inner.node


def _tensors(graph: GraphProto) -> Iterator[TensorProto]:
    """Weights, and the constants held by nodes."""
    for inner in _graphs(graph):
        yield from inner.initializer
    for node in _nodes(graph):
        for attribute in node.attribute:
            if attribute.type == AttributeProto.TENSOR:
                yield attribute.t


def as_type(tensor: TensorProto, code: int) -> np.ndarray:
    """Values of ``tensor`` in the type that ONNX numbers ``code``."""
    with np.errstate(over="ignore"):  # an overflow shows as infinite features, and is reported as that
        return numpy_helper.to_array(tensor).astype(helper.tensor_dtype_to_np_dtype(code))


def _replace(tensor: TensorProto, array: np.ndarray) -> None:
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _rename(node: NodeProto, names: dict[str, str]) -> None:
    for side in (node.input, node.output):
        for i, name in enumerate(side):
            side[i] = names.get(name, name)


def _cast(source: str, target: str, code: int) -> NodeProto:
    return helper.make_node("Cast", [source], [target], name=f"cast.{target}", to=code)
