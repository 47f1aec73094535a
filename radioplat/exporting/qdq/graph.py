"""An ONNX graph that can be asked who makes a tensor, who takes it, and what is constant in it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from radioplat.errors import EngineError

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
# What hands values on as they are, so that a scale stays true across it.
MOVES_ONLY = frozenset({"Identity", "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Cast"})


def read_graph(path: str | Path, where: str = "") -> ModelProto:
    """An ONNX file with its weights.

    Raises:
        EngineError: it is not there, or no ONNX.
    """
    path = Path(path)
    where = where or str(path)
    if not path.is_file():
        raise EngineError(f"there is no ONNX file {path}", where=where)
    try:
        model = onnx.load(str(path))
    except Exception as error:  # protobuf's class depends on its implementation
        raise EngineError(f"{path} is not an ONNX file: {' '.join(str(error).split())[:200]}", where=where) from error
    if not model.graph.node:
        raise EngineError(f"{path} is not an ONNX file: it holds no graph", where=where)
    return model


class Graph:
    """The main graph of a model; bodies of control flow are not looked into.

    Attributes:
        nodes: in their order.
        outputs: names of what the graph gives.
    """

    def __init__(self, model: ModelProto) -> None:
        self.nodes: list[NodeProto] = list(model.graph.node)
        self.outputs = {value.name for value in model.graph.output}
        self._makers = {name: node for node in self.nodes for name in node.output if name}
        self._takers: dict[str, list[NodeProto]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.input):
                self._takers.setdefault(name, []).append(node)
        self._tensors: dict[str, TensorProto] = {tensor.name: tensor for tensor in model.graph.initializer}
        for node in self.nodes:
            if node.op_type == "Constant":
                self._tensors.update((node.output[0], a.t) for a in node.attribute if a.name == "value")
        self._constant: dict[str, bool] = {}

    def maker(self, name: str) -> NodeProto | None:
        """The node that gives tensor ``name``; None for an input and for a weight."""
        return self._makers.get(name)

    def takers(self, name: str) -> list[NodeProto]:
        """The nodes that take tensor ``name``, each once."""
        return self._takers.get(name, [])

    def tensor(self, name: str) -> TensorProto | None:
        """A weight or a constant as it is stored."""
        return self._tensors.get(name)

    def array(self, name: str) -> np.ndarray | None:
        """Values of a weight or a constant; 8-bit and 4-bit floats and integers in ml_dtypes' types."""
        tensor = self.tensor(name)
        return None if tensor is None else numpy_helper.to_array(tensor)

    def is_constant(self, name: str) -> bool:
        """Whether tensor ``name`` follows from weights alone."""
        if name not in self._constant:
            node = self.maker(name)
            known = name in self._tensors
            found = known or (node is not None and all(self.is_constant(i) for i in node.input if i))
            self._constant[name] = found and (known or bool(node and node.input))
        return self._constant[name]

    def source(self, name: str, across: frozenset[str] = frozenset({"Cast"})) -> tuple[str, list[NodeProto]]:
        """Back from tensor ``name`` through nodes of the kinds in ``across``: where it comes from, and those nodes."""
        passed = []
        while (node := self.maker(name)) is not None and node.op_type in across:
            passed.append(node)
            name = node.input[0]
        return name, passed


def name_of(node: NodeProto) -> str:
    """The node's name; where it has none, what it is and gives."""
    return node.name or f"{node.op_type} of {node.output[0]}"


def attribute(node: NodeProto, name: str, default):
    """Value of an attribute of ``node``."""
    for found in node.attribute:
        if found.name == name:
            return helper.get_attribute_value(found)
    return default
