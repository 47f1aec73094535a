"""Layers with weights in an ONNX graph, and which of them are quantized."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from onnx import GraphProto, ModelProto, NodeProto, TensorProto

# Ops that move values or change their type, and leave a Q/DQ pair before them in charge.
_MOVES = {"Cast", "Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"}
_PRODUCTS = {"Conv", "ConvTranspose", "Gemm", "MatMul"}
_FORMATS = {
    TensorProto.INT8: "int8",
    TensorProto.UINT8: "uint8",
    TensorProto.INT4: "int4",
    TensorProto.FLOAT8E4M3FN: "fp8",
}


@dataclass(frozen=True)
class WeightLayer:
    """A convolution or linear layer: a product of an activation and a constant.

    Attributes:
        name: of its ONNX node.
        module: the torch module it came from (``backbone.blocks.0.mlp.fc1``), or the node's name.
        op: ``Conv``, ``ConvTranspose``, ``Gemm`` or ``MatMul``.
        format: ``int8``, ``fp8``, ... where both sides of the product come out of DequantizeLinear, else None.
    """

    name: str
    module: str
    op: str
    format: str | None


def weight_layers(model: ModelProto) -> list[WeightLayer]:
    """Every convolution and linear layer of ``model``, in the graph's order. Products of two activations are none."""
    graph = _Producers(model.graph)
    return [layer for node in model.graph.node if (layer := graph.layer(node)) is not None]


def module_of(node: NodeProto) -> str:
    """The torch module that a node came from, as torch's exporter wrote it down; empty where it did not."""
    for entry in node.metadata_props:
        if entry.key == "pkg.torch.onnx.name_scopes":
            try:
                scopes = ast.literal_eval(entry.value)
            except (ValueError, SyntaxError):
                return ""
            # The last one is the operation itself.
            return str(scopes[-2]) if isinstance(scopes, list) and len(scopes) > 1 else ""
    return ""


class _Producers:
    """Which node makes a value."""

    def __init__(self, graph: GraphProto) -> None:
        self._node = {name: node for node in graph.node for name in node.output}
        self._constant = {tensor.name: tensor.data_type for tensor in graph.initializer}
        for node in graph.node:
            if node.op_type == "Constant":
                tensor = next((a.t for a in node.attribute if a.name == "value"), None)
                self._constant[node.output[0]] = tensor.data_type if tensor is not None else TensorProto.FLOAT

    def layer(self, node: NodeProto) -> WeightLayer | None:
        if node.op_type not in _PRODUCTS or len(node.input) < 2:
            return None
        constant = [self._is_constant(name) for name in node.input[:2]]
        if constant not in ([False, True], [True, False]):
            return None
        formats = [self._format(name) for name in node.input[:2]]
        name = node.name or node.output[0]
        # Both sides, else the product is taken in floats. Of unlike formats (W4A8) the weights' is named.
        found = formats[constant.index(True)] if None not in formats else None
        return WeightLayer(name, module_of(node) or name, node.op_type, found)

    def _is_constant(self, name: str) -> bool:
        if name in self._constant:
            return True
        node = self._node.get(name)
        moves = node is not None and node.op_type in _MOVES | {"QuantizeLinear", "DequantizeLinear"}
        return moves and self._is_constant(node.input[0])

    def _format(self, name: str) -> str | None:
        node = self._node.get(name)
        while node is not None and node.op_type in _MOVES:
            node = self._node.get(node.input[0])
        if node is None or node.op_type != "DequantizeLinear":
            return None
        code = self._stored_type(node)
        return _FORMATS.get(code, TensorProto.DataType.Name(code).lower()) if code is not None else None

    def _stored_type(self, dequantize: NodeProto) -> int | None:
        if dequantize.input[0] in self._constant:
            return self._constant[dequantize.input[0]]
        if len(dequantize.input) > 2 and dequantize.input[2] in self._constant:
            return self._constant[dequantize.input[2]]
        node = self._node.get(dequantize.input[0])
        while node is not None and node.op_type in _MOVES:
            node = self._node.get(node.input[0])
        if node is None or node.op_type != "QuantizeLinear":
            return None
        if len(node.input) > 2 and node.input[2] in self._constant:
            return self._constant[node.input[2]]
        stated = [a.i for a in node.attribute if a.name == "output_dtype" and a.i]
        return stated[0] if stated else TensorProto.UINT8  # ONNX's default
