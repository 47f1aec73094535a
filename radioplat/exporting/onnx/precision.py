"""Float types of an ONNX file.

A strongly typed engine computes in the types of its ONNX file, so fp16 and bf16 are set here, not in the builder. The
finished fp32 graph is retyped instead of the torch module, because the exporter has then folded BatchNorm in fp32
(folding in a bf16 graph leaves fp32 weights with bf16 inputs, which no builder accepts), and students that cast in
their forward need no special code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from radioplat.errors import EngineError
from radioplat.exporting.onnx.publish import save
from radioplat.exporting.qdq.graph import replace_entries
from radioplat.spec.resolved.number_formats import DATA_TYPES, FLOATS

# ONNX's numbers of the types that a graph may compute in.
FLOAT_CODES: dict[str, int] = {name: getattr(TensorProto, DATA_TYPES[name].onnx_type) for name in FLOATS}
# Inputs that ONNX defines as float32 for all data types: Resize's region and scales.
ALWAYS_FLOAT = {"Resize": (1, 2)}
# End of the names, in a simulated graph, of a node's results before they are rounded.
EXACT = ".exact"


def parse_data_type(text: str, where: str) -> str:
    """Return ``fp32``, ``fp16`` or ``bf16``, given in any case (TAO writes ``FP16``).

    Raises:
        EngineError: another name; ``where`` is its field.
    """
    name = text.strip().lower()
    if name in FLOATS:
        return name
    hint = f"Valid: {', '.join(FLOATS)}."
    if name == "int8":
        hint += " For int8, use `radioplat quantize`, and set the data type of the other layers here."
    raise EngineError(f"{text!r} is not a data type of engines", where=where, hint=hint)


def stored_data_type(model: ModelProto) -> str | None:
    """Return the float type of most weights of ``model`` (external data need not be loaded).

    Returns:
        ``fp32``, ``fp16``, ``bf16``, or None if the file has no float weights.
    """
    names = {code: name for name, code in FLOAT_CODES.items()}
    sizes: Counter[str] = Counter()
    for tensor in _tensors(model.graph):
        if tensor.data_type in names:
            sizes[names[tensor.data_type]] += int(np.prod(tensor.dims, dtype=np.int64))
    return sizes.most_common(1)[0][0] if sizes else None


def retype(model: ModelProto, data_type: str) -> None:
    """Make an fp32 ``model`` compute in ``data_type``, in place; its inputs and outputs stay fp32.

    So the interface is the same at any precision (and numpy has no bf16).
    """
    code, graph = FLOAT_CODES[data_type], model.graph
    if code == TensorProto.FLOAT:
        return
    outside = {value.name for value in (*graph.input, *graph.output)}
    _retype_graph(graph, code)
    for names in (names for node in _nodes(graph) for names in (node.input, node.output)):
        for i, name in enumerate(names):
            if name in outside:
                names[i] = f"{name}.{data_type}"
    into = [_cast(v.name, f"{v.name}.{data_type}", code) for v in graph.input]
    out = [_cast(f"{v.name}.{data_type}", v.name, TensorProto.FLOAT) for v in graph.output]
    replace_entries(graph.node, [*into, *graph.node, *out])


def widen(model: ModelProto) -> None:
    """Make ``model`` compute all floats in fp32, in place; its values stay those that its types have rounded."""
    graph, floats = model.graph, set(FLOAT_CODES.values())
    types = _element_types(model)
    for tensor in _tensors(graph):
        if tensor.data_type in floats - {TensorProto.FLOAT}:
            _replace(tensor, numpy_helper.to_array(tensor).astype(np.float32))
    for node in _nodes(graph):
        for entry in node.attribute:
            if entry.name in ("to", "dtype") and entry.i in floats:
                entry.i = TensorProto.FLOAT
    # Casts between float types change nothing now, and one more retyping would make others of the same names.
    outputs = {value.name for value in graph.output}
    same: dict[str, str] = {}
    for node in graph.node:
        if node.op_type != "Cast" or types.get(node.input[0]) not in floats or types.get(node.output[0]) not in floats:
            continue
        if node.output[0] in outputs:
            node.op_type = "Identity"
            del node.attribute[:]
        else:
            same[node.output[0]] = node.input[0]
    kept = [node for node in graph.node if node.output[0] not in same]
    for names in (node.input for node in _nodes(graph)):
        for i, name in enumerate(names):
            while name in same:
                name = same[name]
            names[i] = name
    replace_entries(graph.node, kept)
    for inner in _graphs(graph):
        del inner.value_info[:]


def _element_types(model: ModelProto) -> dict[str, int]:
    """Return ONNX's number of the type of each tensor of the main graph that is known."""
    light = ModelProto()
    light.CopyFrom(model)  # without its weights: inference fails for models above protobuf's 2 GiB
    for tensor in light.graph.initializer:
        if len(tensor.raw_data) > 1024:
            tensor.ClearField("raw_data")
    typed = onnx.shape_inference.infer_shapes(light).graph
    values = [*typed.value_info, *typed.input, *typed.output]
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    return types | {tensor.name: tensor.data_type for tensor in typed.initializer}


def write_in_fp32(source: Path, path: Path) -> Path:
    """Write ``source``, with its Q/DQ, to ``path`` with fp32 in place of all other float types."""
    model = onnx.load(str(source))
    widen(model)
    save(model, path)
    return path


def simulate(file: Path, data_type: str) -> ModelProto:
    """Return the fp32 model in ``file`` with every weight and every node's result rounded to ``data_type``.

    It runs on machines without kernels for the type (bf16 on a CPU), and shows the error of the precision. Sums inside
    a node stay fp32, as on a GPU.
    """
    code, model = FLOAT_CODES[data_type], onnx.load(str(file))
    for tensor in _tensors(model.graph):
        if tensor.data_type == TensorProto.FLOAT:
            _replace(tensor, as_type(tensor, code).astype(np.float32))
    # Without the weights: inference fails for models above protobuf's 2 GiB.
    typed = onnx.shape_inference.infer_shapes(onnx.load(str(file), load_external_data=False)).graph
    values = list(typed.value_info) + list(typed.output)
    floats = {value.name for value in values if value.type.tensor_type.elem_type == TensorProto.FLOAT}
    graph, nodes = model.graph, list[NodeProto]()
    for node in graph.node:
        nodes.append(node)
        for i, name in enumerate(node.output):
            if name in floats:
                node.output[i] = f"{name}{EXACT}"
                nodes.append(_cast(f"{name}{EXACT}", f"{name}.rounded", code))
                nodes.append(_cast(f"{name}.rounded", name, TensorProto.FLOAT))
    replace_entries(graph.node, nodes)
    return model


def _retype_graph(graph: GraphProto, code: int) -> None:
    fixed = {node.input[i] for node in _nodes(graph) for i in ALWAYS_FLOAT.get(node.op_type, ()) if i < len(node.input)}
    fixed_constants = {id(a.t) for n in _nodes(graph) if fixed.intersection(n.output) for a in n.attribute}
    for tensor in _tensors(graph):
        if tensor.data_type == TensorProto.FLOAT and tensor.name not in fixed and id(tensor) not in fixed_constants:
            _replace(tensor, as_type(tensor, code))
    for node in _nodes(graph):
        for attribute in node.attribute:
            if attribute.name in ("to", "dtype") and attribute.i == TensorProto.FLOAT:
                attribute.i = code
    # Intermediate types are inferred again; old ones would be wrong.
    for inner in _graphs(graph):
        del inner.value_info[:]


def _graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """Yield ``graph`` and the bodies of its control flow."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from _graphs(attribute.g)


def _nodes(graph: GraphProto) -> Iterator[NodeProto]:
    for inner in _graphs(graph):
        yield from inner.node


def _tensors(graph: GraphProto) -> Iterator[TensorProto]:
    """Yield weights and the constants of nodes."""
    for inner in _graphs(graph):
        yield from inner.initializer
    for node in _nodes(graph):
        for attribute in node.attribute:
            if attribute.type == AttributeProto.TENSOR:
                yield attribute.t


def as_type(tensor: TensorProto, code: int) -> np.ndarray:
    """Return the values of ``tensor`` in ONNX's type ``code``."""
    with np.errstate(over="ignore"):  # an overflow gives infinite features, which are reported
        return numpy_helper.to_array(tensor).astype(helper.tensor_dtype_to_np_dtype(code))


def _replace(tensor: TensorProto, array: np.ndarray) -> None:
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _cast(source: str, target: str, code: int) -> NodeProto:
    return helper.make_node("Cast", [source], [target], name=f"cast.{target}", to=code)
