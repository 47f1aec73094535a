"""A graph of ONNX's operator set 18, the lowest that torch's exporter writes, in operator set 17.

TensorRT 8 reads no newer one. onnx's own version converter has no way down for Split and Pad, leaves ReduceMean with an
attribute that set 17 does not know, and takes no model beyond 2 GiB; so what differs is rewritten here, and whatever
has no form in the older set is refused by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import onnx
from onnx import GraphProto, ModelProto, NodeProto, helper, numpy_helper

from radioplat.errors import EngineError
from radioplat.spec.resolved.tensorrt_version import LOWEST_OPSET

TRACED = 18
NORM = "LayerNormalization"
_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")


def lower_opset(model: ModelProto, target: str, where: str, unread: Collection[str] = ()) -> None:
    """Rewrite ``model`` in operator set 17, in place; names of tensors and of all other nodes stay.

    Args:
        target: what the file is for, for messages.
        where: the field that asks for it.
        unread: operators of set 17 that the target does not read all the same. LayerNormalization is then written out
            in simpler ones, any other is refused.

    Raises:
        EngineError: names the operators that have no form that the target reads.
    """
    nodes, refused = list[NodeProto](), set[str]()
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    constants |= {n.output[0]: n.attribute[0].t for n in model.graph.node if n.op_type == "Constant"}
    for node in model.graph.node:
        if why := _lower(node, constants):
            refused.add(why)
        if node.op_type == NORM and NORM in unread and not refused:
            nodes += _written_out(node, model.graph, where)
            continue
        if node.op_type in unread:
            refused.add(node.op_type)
        nodes.append(node)
    if refused:
        raise EngineError(
            f"{target} does not read {', '.join(sorted(refused))}, which the student is made of",
            where=where,
            hint="Take a newer one, or another backbone.",
        )
    kept = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(kept)
    _drop_unread_axes(model.graph)
    next(entry for entry in model.opset_import if not entry.domain).version = LOWEST_OPSET


def _lower(node: NodeProto, constants: dict[str, onnx.TensorProto]) -> str:
    """Make ``node`` one of set 17, in place; returns what cannot be, empty where all can."""
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
    """Axes are an attribute, not an input."""
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
    _pop(node, "num_outputs")  # as many equal parts as there are outputs
    return ""


def _pad(node: NodeProto, constants: dict[str, onnx.TensorProto]) -> str:
    return "Pad of some axes" if len(node.input) > 3 and node.input[3] else ""


def _resize(node: NodeProto, constants: dict[str, onnx.TensorProto]) -> str:
    if _pop(node, "antialias"):
        return "Resize with antialiasing"
    if _pop(node, "axes") or _pop(node, "keep_aspect_ratio_policy") not in (None, b"stretch"):
        return "Resize of some axes"
    return ""


def _scatter(node: NodeProto, constants: dict[str, onnx.TensorProto]) -> str:
    how = next((a.s for a in node.attribute if a.name == "reduction"), b"none")
    return "" if how in (b"none", b"add", b"mul") else f"{node.op_type} of {how.decode()}"


_CHANGES: dict[str, Callable[[NodeProto, dict[str, onnx.TensorProto]], str]] = {
    **{f"Reduce{name}": _reduction for name in _REDUCTIONS},
    "Split": _split,
    "Pad": _pad,
    "Resize": _resize,
    "ScatterElements": _scatter,
    "ScatterND": _scatter,
}


def _pop(node: NodeProto, name: str):
    """Take an attribute away; returns its value, None where there is none."""
    for place, attribute in enumerate(node.attribute):
        if attribute.name == name:
            value = helper.get_attribute_value(attribute)
            del node.attribute[place]
            return value
    return None


def _written_out(node: NodeProto, graph: GraphProto, where: str) -> Iterator[NodeProto]:
    """LayerNormalization as operators that have been there since set 13, named after its output."""
    given = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    first, result = given.get("axis", -1), node.output[0]
    if first >= 0 or len(node.output) > 1:
        raise EngineError(f"{node.name} normalises in a way that is not written out", where=where)
    axes, names = list(range(first, 0)), {k: f"{result}.{k}" for k in ("mean", "apart", "square", "variance", "sum")}
    names |= {k: f"{result}.{k}" for k in ("deviation", "unit", "scaled", "epsilon")}
    epsilon = helper.make_tensor(names["epsilon"], onnx.TensorProto.FLOAT, [], [given.get("epsilon", 1e-5)])
    graph.initializer.append(epsilon)
    image, scale, *shift = [name for name in node.input if name]
    last = names["scaled"] if shift else result

    def make(kind: str, inputs: list[str], output: str, **attributes) -> NodeProto:
        made = helper.make_node(kind, inputs, [output], name=output, **attributes)
        made.metadata_props.extend(node.metadata_props)
        return made

    yield make("ReduceMean", [image], names["mean"], axes=axes)
    yield make("Sub", [image, names["mean"]], names["apart"])
    yield make("Mul", [names["apart"], names["apart"]], names["square"])
    yield make("ReduceMean", [names["square"]], names["variance"], axes=axes)
    yield make("Add", [names["variance"], names["epsilon"]], names["sum"])
    yield make("Sqrt", [names["sum"]], names["deviation"])
    yield make("Div", [names["apart"], names["deviation"]], names["unit"])
    yield make("Mul", [names["unit"], scale], last)
    if shift:
        yield make("Add", [last, shift[0]], result)


def _drop_unread_axes(graph: GraphProto) -> None:
    """Constants that only axes were read from."""
    read = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
    kept = [tensor for tensor in graph.initializer if tensor.name in read]
    if len(kept) < len(graph.initializer):
        kept = [onnx.TensorProto.FromString(tensor.SerializeToString()) for tensor in kept]
        del graph.initializer[:]
        graph.initializer.extend(kept)
