"""An ONNX graph with look-ups: producer and consumers of a tensor, and constants."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from radioplat.errors import EngineError

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
# Operations that do not change values, so that a scale is valid before and after them.
MOVES_ONLY = frozenset({"Identity", "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Cast"})


def read_graph(path: str | Path, where: str = "") -> ModelProto:
    """Read an ONNX file with its weights.

    Raises:
        EngineError: it does not exist, or is not ONNX.
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
        raise EngineError(f"{path} is not an ONNX file: it has no graph", where=where)
    return model


def replace_entries(field: Any, entries: Iterable[Any]) -> None:
    """Replace the entries of a repeated protobuf field; ``entries`` may be from the field itself."""
    copies = [type(entry).FromString(entry.SerializeToString()) for entry in entries]
    del field[:]
    field.extend(copies)


def shapes_of(values: Iterable[ValueInfoProto]) -> dict[str, list[int | str]]:
    """Return shape by name; a dynamic dimension is given by its name."""
    return {v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in values}


class Graph:
    """The main graph of a model, without the bodies of control flow.

    Attributes:
        nodes: in the graph's order.
        outputs: names of the graph's outputs.
    """

    def __init__(self, model: ModelProto) -> None:
        self.nodes: list[NodeProto] = list(model.graph.node)
        self.outputs = {value.name for value in model.graph.output}
        self._producers = {name: node for node in self.nodes for name in node.output if name}
        self._consumers: dict[str, list[NodeProto]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.input):
                self._consumers.setdefault(name, []).append(node)
        self._tensors: dict[str, TensorProto] = {tensor.name: tensor for tensor in model.graph.initializer}
        for node in self.nodes:
            if node.op_type == "Constant":
                self._tensors.update((node.output[0], a.t) for a in node.attribute if a.name == "value")
        self._constant: dict[str, bool] = {}

    def producer(self, name: str) -> NodeProto | None:
        """Return the node that outputs tensor ``name``; None for an input or a weight."""
        return self._producers.get(name)

    def consumers(self, name: str) -> list[NodeProto]:
        """Return the nodes that read tensor ``name``, each once."""
        return self._consumers.get(name, [])

    def tensor(self, name: str) -> TensorProto | None:
        """Return a weight or constant as it is stored."""
        return self._tensors.get(name)

    def array(self, name: str) -> np.ndarray | None:
        """Return the values of a weight or constant; 8-bit and 4-bit formats as types of ml_dtypes."""
        tensor = self.tensor(name)
        return None if tensor is None else numpy_helper.to_array(tensor)

    def is_constant(self, name: str) -> bool:
        """Return whether tensor ``name`` depends only on weights."""
        if name not in self._constant:
            node = self.producer(name)
            computed = node is not None and bool(node.input) and all(self.is_constant(i) for i in node.input if i)
            self._constant[name] = name in self._tensors or computed
        return self._constant[name]

    def source(self, name: str, across: frozenset[str] = frozenset({"Cast"})) -> tuple[str, list[NodeProto]]:
        """Follow tensor ``name`` back through nodes of the kinds in ``across``; return its source and these nodes."""
        passed = []
        while (node := self.producer(name)) is not None and node.op_type in across:
            passed.append(node)
            name = node.input[0]
        return name, passed


def name_of(node: NodeProto) -> str:
    """Return the node's name; if it has none, its operation and output."""
    return node.name or f"{node.op_type} of {node.output[0]}"


def attribute(node: NodeProto, name: str, default):
    """Return the value of an attribute of ``node``."""
    return next((helper.get_attribute_value(entry) for entry in node.attribute if entry.name == name), default)
