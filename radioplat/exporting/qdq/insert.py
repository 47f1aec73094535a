"""Replace the marks of a traced graph by QuantizeLinear and DequantizeLinear, or remove them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from radioplat.errors import EngineError
from radioplat.exporting.qdq.graph import DEQUANTIZE, QUANTIZE, Graph, attribute, replace_entries
from radioplat.exporting.qdq.graph_layers import CONVOLUTIONS
from radioplat.exporting.qdq.mark import DOMAIN, Mark, marks, module_of
from radioplat.exporting.qdq.ranges import Range
from radioplat.models.quantized.fake_quantize import NumberFormat
from radioplat.spec.resolved.number_formats import ACTIVATIONS, DATA_TYPES, engine_type

HALF_OPSET = 19  # the first operator set whose scales may be fp16


def insert_pairs(model: ModelProto, stored: bool = True) -> list[Range]:
    """Replace the marks in ``model``, in place, by Q/DQ pairs; return all scales.

    Args:
        stored: store weights as quantized numbers before a DequantizeLinear, in an eighth to a quarter of the size;
            False: as floats before a pair, for TensorRT before 10, whose parser reads no quantized weights.

    Raises:
        EngineError: activations in a format for weights only (int4), which no engine supports.
    """
    graph = Graph(model)
    uses: Counter[str] = Counter()
    pairs, every = [], marks(model)
    inputs = {mark.layer: mark.format for mark in every if mark.module.endswith(".input_quantizer")}
    for mark in every:
        uses[mark.module] += 1
        pairs.append(_Pair(graph, mark, stored, uses[mark.module], inputs.get(mark.layer)))
    by_mark = {id(pair.mark.node): pair for pair in pairs}
    unneeded = {id(pair.transpose) for pair in pairs if pair.transpose is not None}
    nodes: list[NodeProto] = []
    for node in model.graph.node:
        if id(node) in by_mark:
            nodes.extend(by_mark[id(node)].nodes)
        elif id(node) not in unneeded:
            nodes.append(node)
    _replace_nodes(model, nodes)
    for pair in pairs:
        model.graph.initializer.extend(pair.tensors)
    _name_layers(model)
    _drop_unused(model.graph)
    return [pair.range for pair in pairs]


def remove_marks(model: ModelProto) -> None:
    """Remove the marks from ``model``, in place; all other tensors keep their names.

    Weights are rounded as they are with Q/DQ, so a builder that chooses their scales itself finds the trained values.
    """
    graph = Graph(model)
    renamed = {}
    for mark in marks(model):
        source, scale_name = mark.node.input
        weight, scale = graph.array(source), graph.array(scale_name)
        renamed[mark.node.output[0]] = source
        if weight is not None and scale is not None:
            name = f"{mark.module}.rounded"
            model.graph.initializer.append(numpy_helper.from_array(_rounded(weight, scale, mark), name))
            renamed[mark.node.output[0]] = name
    nodes = [node for node in model.graph.node if node.output[0] not in renamed]
    for node in nodes:
        for i, name in enumerate(node.input):
            node.input[i] = renamed.get(name, name)
    _replace_nodes(model, nodes)
    _name_layers(model)
    _drop_unused(model.graph)


class _Pair:
    """The nodes that replace one mark.

    Args:
        use: number of the call of its quantizer: a shared layer has a pair for each call, with different names.
        inputs: format of the layer's inputs; None if they are not quantized.

    Attributes:
        nodes, tensors: to be added to the graph.
        transpose: a node that transposed the weight, and is no longer needed.
        range: its scale.
    """

    def __init__(self, graph: Graph, mark: Mark, stored: bool, use: int, inputs: NumberFormat | None) -> None:
        self.mark, self.transpose = mark, None
        self._suffix = "" if use == 1 else f".{use}"
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
        consumers = graph.consumers(self._output)
        if row.name not in ACTIVATIONS and any(node.op_type in CONVOLUTIONS for node in consumers):
            # No engine has convolutions with weights in another format than their inputs: store a byte for each number
            # (fp8 represents all integers up to 16).
            row_of_inputs = inputs.row if inputs is not None else DATA_TYPES[engine_type(row.name)]
            kind = getattr(TensorProto, row_of_inputs.onnx_type)
        if len(consumers) == 1 and consumers[0].op_type == "Transpose" and weight.ndim == 2:
            # Transposed here, so that the engine need not.
            self.transpose, self._output = consumers[0], consumers[0].output[0]
            perm = attribute(consumers[0], "perm", [1, 0])
            weight, axis = weight.transpose(perm), -1 if axis == -1 else perm.index(axis)
            scale = scale.transpose(perm) if scale.ndim == 2 else scale
        name = f"{mark.layer}.weight{self._suffix}"
        if stored:
            self._add(None, quantized(weight, scale, axis, mark.format, kind, f"{name}_quantized"), scale, axis, kind)
        else:
            self.tensors.append(numpy_helper.from_array(np.ascontiguousarray(weight), f"{name}_float"))
            self._add(f"{name}_float", None, scale, axis, kind)

    def _add(self, x: str | None, tensor: TensorProto | None, scale: np.ndarray, axis: int, kind: int) -> None:
        name, along = f"{self.mark.module}{self._suffix}", {} if axis == -1 else {"axis": axis}
        if scale.ndim == 2:  # in blocks along the other axis
            assert tensor is not None
            along = {"axis": 1 - axis, "block_size": tensor.dims[1 - axis] // scale.shape[1 - axis]}
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
    """Return ``weight`` rounded to ``format``, stored as ONNX's type ``kind``."""
    v = np.clip(weight / _along(scale, weight, axis), format.lowest, format.highest)
    v = v if format.row.is_float else np.rint(v)
    return numpy_helper.from_array(np.ascontiguousarray(v).astype(helper.tensor_dtype_to_np_dtype(kind)), name)


def _rounded(weight: np.ndarray, scale: np.ndarray, mark: Mark) -> np.ndarray:
    """Return the floats that a weight's Q/DQ gives."""
    kind = getattr(TensorProto, mark.format.row.onnx_type)
    whole = numpy_helper.to_array(quantized(weight, scale, mark.axis, mark.format, kind, "whole")).astype(np.float32)
    return np.ascontiguousarray(whole * _along(scale, weight, mark.axis).astype(np.float32))


def _along(scale: np.ndarray, weight: np.ndarray, axis: int) -> np.ndarray:
    """Return ``scale`` in a shape that broadcasts over ``weight``."""
    if scale.ndim == 2:
        return scale.repeat(weight.shape[1 - axis] // scale.shape[1 - axis], 1 - axis)
    shape = [1] * weight.ndim
    if axis != -1:
        shape[axis] = -1
    return scale.reshape(shape)


def _name_layers(model: ModelProto) -> None:
    """Name convolutions and linear layers like their modules, for the findings of the linter."""
    used: Counter[str] = Counter()
    for node in model.graph.node:
        if node.op_type in (*CONVOLUTIONS, "Gemm", "MatMul"):
            name = module_of(node) or node.name
            used[name] += 1
            node.name = name if used[name] == 1 else f"{name}.{used[name]}"


def _replace_nodes(model: ModelProto, nodes: Iterable[NodeProto]) -> None:
    replace_entries(model.graph.node, nodes)
    replace_entries(model.opset_import, [entry for entry in model.opset_import if entry.domain != DOMAIN])


def _drop_unused(graph: GraphProto) -> None:
    """Remove weights that no node reads, types of removed tensors, and the metadata of the tracer.

    The metadata has lines of source code with their paths, and is larger than the weights of a small model.
    """
    for entry in (graph, *graph.node, *graph.initializer, *graph.value_info, *graph.input, *graph.output):
        del entry.metadata_props[:]
    used = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
    computed = {name for node in graph.node for name in node.output}
    for field, names in ((graph.initializer, used), (graph.value_info, computed)):
        for i in reversed([i for i, entry in enumerate(field) if entry.name not in names]):
            del field[i]
