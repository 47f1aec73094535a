"""Unsigned integers for activations that are never negative.

Files for TensorRT have signed integers alone, so half of their values stand for nothing behind a ReLU. CPUs multiply
unsigned activations by signed weights without a correction, and the step is half as large.
"""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, NodeProto, numpy_helper

from radioplat.exporting.qdq.graph import DEQUANTIZE, MOVES_ONLY, QUANTIZE, Graph, attribute

_NEVER_NEGATIVE = ("Relu", "Sigmoid", "HardSigmoid", "Softmax")
_PASSING = MOVES_ONLY | {"MaxPool", QUANTIZE, DEQUANTIZE}  # nodes whose output is negative only where their input is
_SIGNED, _UNSIGNED = 127, 255  # the largest values


def make_unsigned(model: ModelProto) -> int:
    """Quantize tensors that are never negative to 0..255 instead of 0..127, in place; return the number of tensors.

    Their range stays, so each value is rounded to a step that is 127 / 255 of the one before.
    """
    graph, steps = Graph(model), dict[str, np.ndarray]()
    nodes = [node for node in graph.nodes if _is_signed(graph, node) and _is_never_negative(graph, node.input[0])]
    for node in nodes:
        step = graph.array(node.input[1])
        assert step is not None  # _is_signed read it
        name = f"{node.input[1]}_unsigned"
        steps[name] = (step.astype(np.float64) * _SIGNED / _UNSIGNED).astype(step.dtype)
        for each in (node, *graph.consumers(node.output[0])):
            each.input[:] = [each.input[0], name, f"{name}_zero"]
    for name, step in steps.items():
        zero = numpy_helper.from_array(np.zeros(step.shape, np.uint8), f"{name}_zero")
        model.graph.initializer.extend([numpy_helper.from_array(step, name), zero])
    return len(nodes)


def _is_signed(graph: Graph, node: NodeProto) -> bool:
    """Return whether a node quantizes to INT8 around zero, by one stored step, for DequantizeLinear alone."""
    if node.op_type != QUANTIZE or len(node.input) < 3 or attribute(node, "output_dtype", 0):
        return False
    step, point = graph.array(node.input[1]), graph.array(node.input[2])
    stored = step is not None and step.size == 1 and point is not None and point.dtype == np.int8 and not point.any()
    return stored and all(reader.op_type == DEQUANTIZE for reader in graph.consumers(node.output[0]))


def _is_never_negative(graph: Graph, name: str) -> bool:
    node = graph.producer(name)
    if node is None:
        return False
    if node.op_type == "Clip":
        least = graph.array(node.input[1]) if len(node.input) > 1 else None
        return least is not None and float(least) >= 0
    passing = node.op_type in _PASSING and _is_never_negative(graph, node.input[0])
    return passing or node.op_type in _NEVER_NEGATIVE
