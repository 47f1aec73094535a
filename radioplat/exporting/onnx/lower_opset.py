"""Rewrite a graph of ONNX's operator set 18, the lowest of torch's exporter, in operator set 17 for TensorRT 8.

onnx's version converter does not convert Split and Pad to 17, leaves ReduceMean with an attribute that 17 does not
have, and fails for models above 2 GiB. So differences are rewritten here; operators without a form in 17 are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import onnx
from onnx import GraphProto, ModelProto, NodeProto, helper, numpy_helper

from radioplat.errors import EngineError
from radioplat.exporting.qdq.graph import replace_entries
from radioplat.spec.resolved.tensorrt_version import LOWEST_OPSET

TRACED = 18
NORM = "LayerNormalization"
_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")


def lower_opset(model: ModelProto, target: str, where: str, unread: Collection[str] = ()) -> None:
    """Rewrite ``model`` in operator set 17, in place; names of tensors and of all other nodes stay.

    Args:
        target: name of the target, for messages.
        where: the field that selects it.
        unread: operators of set 17 that the target does not support. LayerNormalization is replaced by simpler
            operators, others are refused.

    Raises:
        EngineError: with the operators that have no form for the target.
    """
    nodes, refused = list[NodeProto](), set[str]()
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    constants |= {n.output[0]: n.attribute[0].t for n in model.graph.node if n.op_type == "Constant"}
    for node in model.graph.node:
        if unsupported := _lower(node, constants):
            refused.add(unsupported)
        if node.op_type == NORM and NORM in unread and not refused:
            nodes += _expand_norm(node, model.graph, where)
            continue
        if node.op_type in unread:
            refused.add(node.op_type)
        nodes.append(node)
    if refused:
        raise EngineError(
            f"{target} does not support {', '.join(sorted(refused))}, which the student uses",
            where=where,
            hint="Use a newer one, or another backbone.",
        )
    replace_entries(model.graph.node, nodes)
    _drop_unread_axes(model.graph)
    next(entry for entry in model.opset_import if not entry.domain).version = LOWEST_OPSET


def _lower(node: NodeProto, constants: dict[str, onnx.TensorProto]) -> str:
    """Rewrite ``node`` in set 17, in place; return a description of what is not supported, else an empty text."""
    if node.domain or _since(node.op_type, LOWEST_OPSET) == _since(node.op_type, TRACED):
        return ""
    if any(attribute.HasField("g") for attribute in node.attribute):
        return f"{node.op_type} with a graph inside"
    change = _CHANGES.get(node.op_type)
    return change(node, constants) if change else node.op_type


def _since(name: str, opset: int) -> int:
    try:
        return onnx.defs.get_schema(name, opset, "").since_version
    except onnx.defs.SchemaError:
        return 0


def _reduction(node: NodeProto, constants: dict[str, onnx.TensorProto]) -> str:
    """Move the axes from an input to an attribute."""
    _pop(node, "noop_with_empty_axes")
    if len(node.input) < 2:
        return ""
    axes = constants.get(node.input[1])
    if axes is None:
        return f"{node.op_type} over axes that are computed"
    del node.input[1:]
    node.attribute.append(helper.make_attribute("axes", numpy_helper.to_array(axes).tolist()))
    return ""


def _split(node: NodeProto, constants: dict[str, onnx.TensorProto]) -> str:
    _pop(node, "num_outputs")  # set 17 splits into one equal part per output
    return ""


def _resize(node: NodeProto, constants: dict[str, onnx.TensorProto]) -> str:
    if _pop(node, "antialias"):
        return "Resize with antialiasing"
    if _pop(node, "axes") or _pop(node, "keep_aspect_ratio_policy") not in (None, b"stretch"):
        return "Resize of some axes"
    return ""


def _scatter(node: NodeProto, constants: dict[str, onnx.TensorProto]) -> str:
    mode = next((a.s for a in node.attribute if a.name == "reduction"), b"none")
    return "" if mode in (b"none", b"add", b"mul") else f"{node.op_type} of {mode.decode()}"


_CHANGES: dict[str, Callable[[NodeProto, dict[str, onnx.TensorProto]], str]] = {
    **{f"Reduce{name}": _reduction for name in _REDUCTIONS},
    "Split": _split,
    "Pad": lambda node, constants: "Pad of some axes" if len(node.input) > 3 and node.input[3] else "",
    "Resize": _resize,
    "ScatterElements": _scatter,
    "ScatterND": _scatter,
}


def _pop(node: NodeProto, name: str):
    """Remove an attribute; return its value, or None if there is none."""
    for place, attribute in enumerate(node.attribute):
        if attribute.name == name:
            value = helper.get_attribute_value(attribute)
            del node.attribute[place]
            return value
    return None


def _expand_norm(node: NodeProto, graph: GraphProto, where: str) -> Iterator[NodeProto]:
    """Yield LayerNormalization as operators of set 13, named after its output."""
    options = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    first, result = options.get("axis", -1), node.output[0]
    if first >= 0 or len(node.output) > 1:
        raise EngineError(f"{node.name} normalises other axes than the last ones, or has several outputs", where=where)
    axes, names = list(range(first, 0)), {k: f"{result}.{k}" for k in ("mean", "centered", "square", "variance", "sum")}
    names |= {k: f"{result}.{k}" for k in ("deviation", "unit", "scaled", "epsilon")}
    epsilon = helper.make_tensor(names["epsilon"], onnx.TensorProto.FLOAT, [], [options.get("epsilon", 1e-5)])
    graph.initializer.append(epsilon)
    image, scale, *shift = [name for name in node.input if name]
    last = names["scaled"] if shift else result

    def make(kind: str, inputs: list[str], output: str, **attributes) -> NodeProto:
        operation = helper.make_node(kind, inputs, [output], name=output, **attributes)
        operation.metadata_props.extend(node.metadata_props)
        return operation

    yield make("ReduceMean", [image], names["mean"], axes=axes)
    yield make("Sub", [image, names["mean"]], names["centered"])
    yield make("Mul", [names["centered"], names["centered"]], names["square"])
    yield make("ReduceMean", [names["square"]], names["variance"], axes=axes)
    yield make("Add", [names["variance"], names["epsilon"]], names["sum"])
    yield make("Sqrt", [names["sum"]], names["deviation"])
    yield make("Div", [names["centered"], names["deviation"]], names["unit"])
    yield make("Mul", [names["unit"], scale], last)
    if shift:
        yield make("Add", [last, shift[0]], result)


def _drop_unread_axes(graph: GraphProto) -> None:
    """Remove constants that were only read as axes."""
    read = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
    for i in reversed(range(len(graph.initializer))):
        if graph.initializer[i].name not in read:
            del graph.initializer[i]
