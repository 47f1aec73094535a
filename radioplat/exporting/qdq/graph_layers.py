"""Convolutions and linear layers of a graph, and the sources of their operands."""

from __future__ import annotations

from dataclasses import dataclass

from onnx import NodeProto, TensorProto

from radioplat.exporting.qdq.graph import DEQUANTIZE, MOVES_ONLY, Graph, attribute, name_of

CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})


@dataclass(frozen=True)
class Layer:
    """A node that multiplies an activation by a weight.

    Attributes:
        node: a Conv, ConvTranspose, Gemm or MatMul.
        data: the DequantizeLinear of its activation; None for floats.
        weight: the DequantizeLinear of its weight; None for floats.
        channels: number of output channels; None if unknown.
        channel_axis: axis of the output channels in the weight as the node reads it.
        weight_axis: axis of the weight's scales, in the same shape; None if unknown.
        is_weight_only: whether 4-bit weights multiply a float activation, for which TensorRT has kernels.
    """

    node: NodeProto
    data: NodeProto | None
    weight: NodeProto | None
    channels: int | None
    channel_axis: int
    weight_axis: int | None
    is_weight_only: bool

    @property
    def name(self) -> str:
        """The node's name."""
        return name_of(self.node)

    @property
    def is_quantized(self) -> bool:
        """Whether both operands are quantized, or only the weight, to 4 bits."""
        return self.weight is not None and (self.data is not None or self.is_weight_only)


def find_layers(graph: Graph) -> list[Layer]:
    """Return all layers; a MatMul of two activations, as in attention, is not one."""
    return [layer for node in graph.nodes if (layer := _layer(graph, node)) is not None]


def block_of(dequantize: NodeProto | None) -> int:
    """Return how many numbers in a row share a scale of a DequantizeLinear; 0 if it has no blocks."""
    return 0 if dequantize is None else attribute(dequantize, "block_size", 0)


def _layer(graph: Graph, node: NodeProto) -> Layer | None:
    operands = _operands(graph, node)
    if operands is None:
        return None
    data_name, weight_name, axis = operands
    source, passed = graph.source(weight_name, MOVES_ONLY)
    producer = graph.producer(source)
    weight = producer if producer is not None and producer.op_type == DEQUANTIZE else None
    stored = weight.input[0] if weight is not None else source
    while (node_before := graph.producer(stored)) is not None and node_before.input:
        stored = node_before.input[0]
    tensor = graph.tensor(stored)
    moved = any(p.op_type not in ("Transpose", "Cast", "Identity") for p in passed)
    origin = None if moved or tensor is None else _axis_before(passed, axis, len(tensor.dims))
    channels = tensor.dims[origin] if tensor is not None and origin is not None else None
    scale_axis = None
    if weight is not None and origin is not None and tensor is not None:
        scale_axis = attribute(weight, "axis", 1) % len(tensor.dims)
        # In the shape that the node reads: the axis after the transpositions.
        scale_axis = axis if scale_axis == origin else next(i for i in range(len(tensor.dims)) if i != axis)
    only = weight is not None and tensor is not None and tensor.data_type == TensorProto.INT4
    data = graph.producer(graph.source(data_name, MOVES_ONLY)[0])
    data = data if data is not None and data.op_type == DEQUANTIZE else None
    return Layer(node, data, weight, channels, axis, scale_axis, bool(only and data is None))


def _operands(graph: Graph, node: NodeProto) -> tuple[str, str, int] | None:
    """Return the names of activation and weight, and the weight's axis of output channels."""
    if node.op_type == "Conv":
        return node.input[0], node.input[1], 0
    if node.op_type == "ConvTranspose":
        return node.input[0], node.input[1], 1
    if node.op_type not in ("Gemm", "MatMul"):
        return None
    left, right = (graph.is_constant(name) for name in node.input[:2])
    if left == right:
        return None
    if right:
        return node.input[0], node.input[1], 0 if node.op_type == "Gemm" and attribute(node, "transB", 0) else 1
    return node.input[1], node.input[0], 1 if node.op_type == "Gemm" and attribute(node, "transA", 0) else 0


def _axis_before(passed: list[NodeProto], axis: int, rank: int) -> int:
    """Return the axis of the stored weight that the transpositions ``passed``, last one first, move to ``axis``."""
    for node in passed:
        if node.op_type == "Transpose":
            axis = attribute(node, "perm", list(range(rank))[::-1])[axis]
    return axis
