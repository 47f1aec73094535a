"""From marks to QuantizeLinear and DequantizeLinear, or to a graph without either."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from radioplat.errors import EngineError
from radioplat.exporting.qdq.graph import DEQUANTIZE, QUANTIZE, Graph, attribute
from radioplat.exporting.qdq.layers import CONVOLUTIONS
from radioplat.exporting.qdq.mark import DOMAIN, Mark, marks, module_of
from radioplat.exporting.qdq.ranges import Range
from radioplat.models.quantized.fake_quantize import NumberFormat
from radioplat.spec.resolved.number_formats import ACTIVATIONS, DATA_TYPES, engine_type

HALF_OPSET = 19  # the first operator set whose scales may be fp16


def insert_pairs(model: ModelProto, stored: bool = True) -> list[Range]:
    """Replace the marks in ``model``, in place, by Q/DQ pairs; returns every scale.

    Args:
        stored: keep weights as quantized numbers behind a DequantizeLinear, an eighth to a quarter of the size;
            False: floats behind a pair, for TensorRT before 10, whose parser takes no quantized weights.

    Raises:
        EngineError: activations in a format of weights alone (int4), which no engine computes with.
    """
    graph = Graph(model)
    uses: dict[str, int] = {}
    made, every = [], marks(model)
    inputs = {mark.layer: mark.format for mark in every if mark.module.endswith(".input_quantizer")}
    for mark in every:
        uses[mark.module] = uses.get(mark.module, 0) + 1
        made.append(_Pair(graph, mark, stored, uses[mark.module], inputs.get(mark.layer)))
    by_mark = {id(pair.mark.node): pair for pair in made}
    gone = {id(pair.transpose) for pair in made if pair.transpose is not None}
    nodes: list[NodeProto] = []
    for node in model.graph.node:
        if id(node) in by_mark:
            nodes.extend(by_mark[id(node)].nodes)
        elif id(node) not in gone:
            nodes.append(node)
    _replace_nodes(model, nodes)
    for pair in made:
        model.graph.initializer.extend(pair.tensors)
    _name_layers(model)
    _drop_unused(model.graph)
    return [pair.range for pair in made]


def remove_marks(model: ModelProto) -> None:
    """Take the marks out of ``model``, in place; every other tensor keeps its name."""
    renamed = {mark.node.output[0]: mark.node.input[0] for mark in marks(model)}
    nodes = [node for node in model.graph.node if node.output[0] not in renamed]
    for node in nodes:
        for i, name in enumerate(node.input):
            node.input[i] = renamed.get(name, name)
    _replace_nodes(model, nodes)
    _name_layers(model)
    _drop_unused(model.graph)


class _Pair:
    """What stands in the place of one mark.

    Args:
        use: how often its quantizer had been called by then: a layer that several layers share has a pair for each,
            and every name is there once.
        inputs: the format of the layer's inputs; None where they are not quantized.

    Attributes:
        nodes, tensors: to be added.
        transpose: the node that turned the weight, and is not needed any more.
        range: its scale.
    """

    def __init__(self, graph: Graph, mark: Mark, stored: bool, use: int, inputs: NumberFormat | None) -> None:
        self.mark, self.transpose = mark, None
        self._again = "" if use == 1 else f".{use}"
        self.nodes: list[NodeProto] = []
        self.tensors: list[TensorProto] = []
        source, scale_name = mark.node.input
        scale, weight = graph.array(scale_name), graph.array(source)
        assert scale is not None  # a parameter of the quantizer
        axis, self._output = mark.axis, mark.node.output[0]
        if axis == -1:
            scale = scale.reshape(())
        row = mark.format.row
        kind = getattr(TensorProto, row.onnx_type)
        self.range = Range(source, mark.format.value, scale, axis, mark.module, weight is not None)
        if weight is None:
            if row.name not in ACTIVATIONS:
                hint = f"Quantize activations to {' or '.join(ACTIVATIONS)}; weights may be {row.name}."
                message = f"the input of {mark.layer} is rounded to {row.name}"
                raise EngineError(message, where="export.checkpoint", hint=hint)
            self._add(source, None, scale, axis, kind)
            return
        takers = graph.takers(self._output)
        if row.name not in ACTIVATIONS and any(taker.op_type in CONVOLUTIONS for taker in takers):
            # No engine has convolutions of weights in another format than their inputs: the same numbers, a byte each
            # (fp8 holds every whole number up to 16).
            row_of_inputs = inputs.row if inputs is not None else DATA_TYPES[engine_type(row.name)]
            kind = getattr(TensorProto, row_of_inputs.onnx_type)
        if len(takers) == 1 and takers[0].op_type == "Transpose" and weight.ndim == 2:
            # Turned here, where it costs nothing.
            self.transpose, self._output = takers[0], takers[0].output[0]
            perm = attribute(takers[0], "perm", [1, 0])
            weight, axis = weight.transpose(perm), -1 if axis == -1 else perm.index(axis)
        name = f"{mark.layer}.weight{self._again}"
        if stored:
            self._add(None, quantized(weight, scale, axis, mark.format, kind, f"{name}_quantized"), scale, axis, kind)
        else:
            self.tensors.append(numpy_helper.from_array(np.ascontiguousarray(weight), f"{name}_float"))
            self._add(f"{name}_float", None, scale, axis, kind)

    def _add(self, x: str | None, tensor: TensorProto | None, scale: np.ndarray, axis: int, kind: int) -> None:
        name, along = f"{self.mark.module}{self._again}", {} if axis == -1 else {"axis": axis}
        zero = np.zeros(scale.shape, helper.tensor_dtype_to_np_dtype(kind))
        self.tensors += [numpy_helper.from_array(scale.astype(np.float32), f"{name}.scale")]
        self.tensors += [numpy_helper.from_array(zero, f"{name}.zero_point")]
        numbers = [f"{name}.scale", f"{name}.zero_point"]
        if tensor is None:
            rounded = f"{name}.quantized"
            self.nodes.append(helper.make_node(QUANTIZE, [x, *numbers], [rounded], name=f"{name}.q", **along))
        else:
            self.tensors.append(tensor)
            rounded = tensor.name
        self.nodes.append(helper.make_node(DEQUANTIZE, [rounded, *numbers], [self._output], name=f"{name}.dq", **along))


def quantized(
    weight: np.ndarray, scale: np.ndarray, axis: int, format: NumberFormat, kind: int, name: str
) -> TensorProto:
    """``weight`` as the numbers that ``format`` holds, stored as ONNX's type ``kind``."""
    shape = [1] * weight.ndim
    if axis != -1:
        shape[axis] = -1
    v = np.clip(weight / scale.reshape(shape), -format.highest, format.highest)
    v = v if format.row.is_float else np.rint(v)
    return numpy_helper.from_array(np.ascontiguousarray(v).astype(helper.tensor_dtype_to_np_dtype(kind)), name)


def _name_layers(model: ModelProto) -> None:
    """Call convolutions and linear layers what their modules are called, so that a finding can be looked up."""
    taken: dict[str, int] = {}
    for node in model.graph.node:
        if node.op_type in (*CONVOLUTIONS, "Gemm", "MatMul"):
            name = module_of(node) or node.name
            taken[name] = taken.get(name, 0) + 1
            node.name = name if taken[name] == 1 else f"{name}.{taken[name]}"


def _replace_nodes(model: ModelProto, nodes: Iterable[NodeProto]) -> None:
    kept = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(kept)
    others = [entry for entry in model.opset_import if entry.domain != DOMAIN]
    del model.opset_import[:]
    model.opset_import.extend(others)


def _drop_unused(graph: GraphProto) -> None:
    """Weights that nobody takes any more, types of tensors that are gone, and the tracer's notes on every node.

    Those hold lines of source with their paths, and in a small net are larger than its weights.
    """
    for entry in (graph, *graph.node, *graph.initializer, *graph.value_info, *graph.input, *graph.output):
        del entry.metadata_props[:]
    used = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
    made = {name for node in graph.node for name in node.output}
    for field, keep in ((graph.initializer, used), (graph.value_info, made)):
        kept = [entry for entry in field if entry.name in keep]
        del field[:]
        field.extend(kept)
