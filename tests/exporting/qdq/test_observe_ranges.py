"""Ranges of every tensor of a graph."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

from radioplat.exporting.deploy.observe_ranges import observe


def test_tensors_whose_type_cannot_be_told_are_named(tmp_path):
    node, value = helper.make_node, helper.make_tensor_value_info
    nodes = [
        node("Relu", ["x"], ["known"]),
        node("Gelu", ["known"], ["unknown"], domain="com.microsoft"),  # ONNX's inference knows no such domain
        node("Neg", ["unknown"], ["y"]),
    ]
    inputs, outputs = value("x", TensorProto.FLOAT, ["n", 3, 4, 4]), value("y", TensorProto.FLOAT, ["n", 3, 4, 4])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(nodes, "net", [inputs], [outputs])
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), str(tmp_path / "a.onnx"))
    ranges, untyped = observe(tmp_path / "a.onnx", [np.full((1, 3, 4, 4), 0.5, np.float32)])
    assert untyped == ["unknown"]
    found = {one.tensor: one.scale for one in ranges}
    assert set(found) == {"x", "known", "y"}
    np.testing.assert_allclose(found["x"], 0.5 / 127, rtol=1e-6)
