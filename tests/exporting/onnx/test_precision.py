"""Retyping an ONNX graph: types, interface, and the rounding that the simulation predicts."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from radioplat.errors import EngineError
from radioplat.exporting.onnx.precision import parse_data_type, retype, simulate, stored_data_type


def graph(seed: int = 0, width: int = 8) -> onnx.ModelProto:
    """images [B, 3, 4, 4] -> Resize x2 -> Conv -> Relu -> pooled; with a weight and a Constant node."""
    rng = np.random.default_rng(seed)
    weight = numpy_helper.from_array(rng.normal(size=(width, 3, 3, 3)).astype(np.float32), "weight")
    scales = numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales")
    half = numpy_helper.from_array(np.array(0.1, np.float32), "half")
    nodes = [
        helper.make_node("Resize", ["images", "", "scales"], ["large"], mode="nearest"),
        helper.make_node("Conv", ["large", "weight"], ["conv"], kernel_shape=[3, 3]),
        helper.make_node("Constant", [], ["bias"], value=half),
        helper.make_node("Add", ["conv", "bias"], ["moved"]),
        helper.make_node("Relu", ["moved"], ["positive"]),
        helper.make_node("GlobalAveragePool", ["positive"], ["summary"]),
    ]
    images = helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 3, 4, 4])
    summary = helper.make_tensor_value_info("summary", TensorProto.FLOAT, ["batch", width, 1, 1])
    made = helper.make_graph(nodes, "g", [images], [summary], [weight, scales])
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)


def run(model: onnx.ModelProto, images: np.ndarray) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(["summary"], {"images": images})[0]


@pytest.mark.parametrize("data_type", ["fp16", "bf16"])
def test_retyped_graph_is_valid_and_keeps_its_interface(data_type):
    model = graph()
    retype(model, data_type)
    onnx.checker.check_model(model, full_check=True)
    assert stored_data_type(model) == data_type
    assert [v.type.tensor_type.elem_type for v in [*model.graph.input, *model.graph.output]] == [TensorProto.FLOAT] * 2
    types = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    assert types["scales"] == TensorProto.FLOAT and types["weight"] != TensorProto.FLOAT


def test_fp32_is_left_as_it_is():
    model = graph()
    retype(model, "fp32")
    assert model == graph() and stored_data_type(model) == "fp32"


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**16), width=st.integers(1, 9))
def test_simulated_fp16_is_near_the_real_one(seed, width, tmp_path_factory):
    """The simulation differs from onnxruntime's fp16 kernels by less than fp16 itself does from fp32, give or take."""
    file = tmp_path_factory.getbasetemp() / "simulated.onnx"
    onnx.save(graph(seed, width), file)
    images = np.random.default_rng(seed).random((2, 3, 4, 4), dtype=np.float32)
    real = graph(seed, width)
    retype(real, "fp16")
    exact, predicted, got = run(graph(seed, width), images), run(simulate(file, "fp16"), images), run(real, images)
    scale = np.abs(exact).max() + 1
    assert np.abs(predicted - exact).max() / scale < 2e-3
    assert np.abs(predicted - got).max() / scale < 2e-3


def test_simulated_bf16_rounds_to_bf16(tmp_path):
    onnx.save(graph(), tmp_path / "a.onnx")
    found = run(simulate(tmp_path / "a.onnx", "bf16"), np.random.default_rng(0).random((1, 3, 4, 4), dtype=np.float32))
    assert not (found.view(np.uint32) & 0xFFFF).any()  # bf16 is the upper half of fp32


def test_names_of_data_types():
    assert [parse_data_type(name, "") for name in ("FP16", "bf16", " fp32 ")] == ["fp16", "bf16", "fp32"]
    with pytest.raises(EngineError, match=r"^here: 'fp64' .*Valid: fp32, fp16, bf16"):
        parse_data_type("fp64", "here")
