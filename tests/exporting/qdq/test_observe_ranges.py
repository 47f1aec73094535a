"""Ranges of every tensor of a graph."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from radioplat.exporting.deploy.observe_ranges import observe
from radioplat.spec.schema.quantize import Calibrator, QuantizeConfig


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
    ranges, untyped = observe(tmp_path / "a.onnx", [np.full((1, 3, 4, 4), 0.5, np.float32)], QuantizeConfig())
    assert untyped == ["unknown"]
    found = {one.tensor: one.scale for one in ranges}
    assert set(found) == {"x", "known", "y"}
    np.testing.assert_allclose(found["x"], 0.5 / 127, rtol=1e-6)


def test_the_range_is_that_of_the_chosen_calibrator(conv_net_file):
    """One value in 3,000 is forty times as large as the others: a percentile leaves it out."""
    pixels = np.random.default_rng(0).random((4, 3, 16, 16), np.float32)
    pixels[0, 0, 0, 0] = 40.0
    ends = {}
    for algorithm in (Calibrator.minmax, Calibrator.percentile):
        config = QuantizeConfig(algorithm=algorithm, percentile=99.9)
        ranges, _ = observe(conv_net_file, [pixels], config)
        ends[algorithm] = next(one.scale for one in ranges if one.tensor == "x") * 127
    assert ends[Calibrator.minmax] == 40.0 and 0.9 < ends[Calibrator.percentile] < 1.1


@pytest.fixture
def conv_net_file(tmp_path):
    value = helper.make_tensor_value_info
    inputs, outputs = value("x", TensorProto.FLOAT, ["n", 3, 16, 16]), value("y", TensorProto.FLOAT, ["n", 3, 16, 16])
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "net", [inputs], [outputs])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), tmp_path / "n.onnx")
    return tmp_path / "n.onnx"
