"""Engines by OpenVINO: executed here, compared with the ONNX file, INT8 by its own word."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from radioplat.common.cpu_threads import has_int8_units
from radioplat.errors import EngineError
from radioplat.exporting.engines.backends import openvino
from radioplat.exporting.engines.backends.onnxruntime import open_session
from radioplat.exporting.engines.backends.openvino import precision_hint
from radioplat.exporting.engines.build import build_engine
from radioplat.exporting.engines.engine_runner import load_engine
from radioplat.exporting.engines.execution import try_execution
from radioplat.exporting.onnx.precision import retype, widen
from radioplat.exporting.qdq.int8_overflow import without_overflow
from radioplat.exporting.qdq.unsigned import make_unsigned
from radioplat.spec.schema.engine import EngineBackend, TensorRTConfig

pytest.importorskip("openvino", reason="the `openvino` extra is not installed")
BACKEND = EngineBackend.openvino


@pytest.mark.parametrize(("name", "data_type"), [("conv_file", "fp32"), ("conv_int8", "int8")])
def test_it_computes_what_the_file_says(name, data_type, tmp_path, request):
    file = request.getfixturevalue(name)
    report = build_engine(file, tmp_path / "a.engine", TensorRTConfig(data_type=data_type), backend=BACKEND)
    record = json.loads((tmp_path / "a.engine.json").read_text())
    assert record["executed"] and record["library"] == "openvino" and record["execution"]["device"] == "cpu"
    images = np.random.default_rng(1).random((19, 3, 32, 32), np.float32)  # more than the largest batch
    found = load_engine(tmp_path / "a.engine")(images)
    session = open_session(file, "disable_all")
    (wanted,) = session.run(["summary"], {"images": images})
    gap = np.abs(found["summary"] - wanted).max() / np.abs(wanted).max()
    # Integer kernels round elsewhere; a step of an INT8 activation is 1/127 of its range. Weights of 7 bits round more.
    assert record["execution"]["least_cosine"] > 0.98 and "warning" not in record["execution"]
    narrow = data_type == "int8" and not has_int8_units()
    assert gap < (1e-5 if data_type == "fp32" else 0.06 if narrow else 0.02)
    assert any("have 7 bits" in note for note in record["notes"]) == narrow
    assert set(report.coverage.kernels) == {data_type} and sum(report.coverage.kernels.values()) == 3


def test_an_engine_that_computes_something_else_is_not_passed_over(conv_file, tmp_path):
    """The engine of one file beside another file, whose weights are turned round."""
    build_engine(conv_file, tmp_path / "a.engine", TensorRTConfig(), backend=BACKEND)
    model = onnx.load(str(conv_file))
    for tensor in model.graph.initializer:
        if len(tensor.dims) > 1:
            tensor.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(tensor), tensor.name))
    onnx.save(model, str(tmp_path / "other.onnx"))
    execution = try_execution(tmp_path / "a.engine", tmp_path / "other.onnx")["execution"]
    assert execution["least_cosine"] < 0.9 and "evaluate it before it is used" in execution["warning"]


def test_with_weights_of_7_bits_no_two_products_overflow_and_the_features_stay(conv_int8, tmp_path):
    """By onnxruntime's float arithmetic, on any CPU."""
    model = onnx.load(str(conv_int8))
    images = np.random.default_rng(1).random((8, 3, 32, 32), np.float32)
    (before,) = open_session(conv_int8, "disable_all").run(["summary"], {"images": images})
    assert without_overflow(model) == 3 and without_overflow(model) == 0
    onnx.checker.check_model(model)
    steps = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer if "7_bits" in t.name}
    weights = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer if t.name.endswith(".weight")}
    assert len(steps) == 3
    for name, values in weights.items():
        step = steps[f"{name}_scale_of_7_bits"].reshape(-1, *[1] * (values.ndim - 1))
        # Two products of an activation of 8 bits without a sign and a weight: their sum must fit into 16 bits.
        assert 2 * 255 * np.rint(np.abs(values) / step).max() < 2**15
    onnx.save(model, str(tmp_path / "narrow.onnx"))
    (after,) = open_session(tmp_path / "narrow.onnx", "disable_all").run(["summary"], {"images": images})
    assert 0 < np.abs(after - before).max() < 0.06 * np.abs(before).max()


def test_activations_behind_a_relu_are_rounded_to_finer_steps(conv_int8, conv_file, tmp_path):
    """By onnxruntime's float arithmetic: nearer to the network in floats than with signed integers."""
    images = np.random.default_rng(1).random((8, 3, 32, 32), np.float32)
    model = onnx.load(str(conv_int8))
    behind = sum(node.op_type == "Relu" for node in model.graph.node)
    count = make_unsigned(model)
    assert 0 < count <= behind and make_unsigned(model) == 0
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, str(tmp_path / "unsigned.onnx"))
    files = {"floats": conv_file, "signed": conv_int8, "unsigned": tmp_path / "unsigned.onnx"}
    features = {
        name: open_session(file, "disable_all").run(["summary"], {"images": images})[0] for name, file in files.items()
    }
    errors = {name: float(np.square(value - features["floats"]).mean()) for name, value in features.items()}
    assert 0 < errors["unsigned"] < errors["signed"]


def test_an_output_behind_an_addition_of_nothing_keeps_its_name(tmp_path):
    """OpenVINO merges it with the tensor before, and that has a name, too."""
    helper = onnx.helper
    nodes = [
        helper.make_node("Conv", ["images", "w"], ["a_tensor_before"], kernel_shape=[1, 1]),
        helper.make_node("Add", ["a_tensor_before", "nothing"], ["vit.summary"]),
    ]
    tensors = {"w": np.ones((4, 3, 1, 1), np.float32), "nothing": np.zeros((4, 1, 1), np.float32)}
    initial = [numpy_helper.from_array(value, name) for name, value in tensors.items()]
    images = helper.make_tensor_value_info("images", 1, ["batch", 3, 8, 8])
    output = helper.make_tensor_value_info("vit.summary", 1, ["batch", 4, 8, 8])
    graph = helper.make_graph(nodes, "g", [images], [output], initial)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, str(tmp_path / "file.onnx"))
    report = build_engine(tmp_path / "file.onnx", tmp_path / "a.engine", TensorRTConfig(), backend=BACKEND)
    assert report.executed and report.execution["least_cosine"] > 0.999
    assert set(load_engine(tmp_path / "a.engine")(np.ones((2, 3, 8, 8), np.float32))) == {"vit.summary"}


def test_what_can_be_negative_keeps_its_integers():
    """A tensor behind a ReLU of a file whose first step is a Clip from -1."""

    def pair(name: str, source: str) -> list[onnx.NodeProto]:
        quantize = onnx.helper.make_node("QuantizeLinear", [source, "step", "zero"], [f"{name}.q"])
        return [quantize, onnx.helper.make_node("DequantizeLinear", [f"{name}.q", "step", "zero"], [name])]

    nodes = [onnx.helper.make_node("Clip", ["x", "low"], ["clipped"]), *pair("a", "clipped"), *pair("b", "x")]
    nodes += [onnx.helper.make_node("Relu", ["a"], ["above"]), *pair("c", "above")]
    nodes += [onnx.helper.make_node("MaxPool", ["c"], ["pooled"], kernel_shape=[2, 2]), *pair("y", "pooled")]
    tensors = {"step": np.float32(0.1), "zero": np.int8(0), "low": np.float32(-1)}
    values = [onnx.helper.make_tensor_value_info(name, 1, [1, 1, 4, 4]) for name in ("x", "y", "b")]
    initial = [numpy_helper.from_array(np.asarray(value), name) for name, value in tensors.items()]
    model = onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", values[:1], values[1:], initial))
    assert make_unsigned(model) == 2
    unsigned = {node.output[0] for node in model.graph.node if "step_unsigned" in node.input}
    assert unsigned == {"c.q", "c", "y.q", "y"}


def test_the_float_type_of_the_rest_is_measured_and_kept_for_this_kind_of_cpu(vit_int8, tmp_path):
    report = build_engine(vit_int8, tmp_path / "a.engine", TensorRTConfig(data_type="int8"), backend=BACKEND)
    rest = json.loads((tmp_path / "a.engine.json").read_text())["rest"]
    assert rest["precision"] in {"fp32", *rest["milliseconds"]} and all(t > 0 for t in rest["milliseconds"].values())
    why = "which is fastest (fp32 " if rest["milliseconds"] else "the only float type that it may be in"
    assert any(f"is computed in {rest['precision']} on this CPU, {why}" in note for note in report.notes)
    assert precision_hint(["int8"], rest) == rest["precision"]
    other = {**rest, "precision": "fp16", "cpu": "another CPU"}
    assert precision_hint(["int8"], other) in ("fp32", "bf16") and precision_hint(["fp16"], other) == "fp16"


@pytest.mark.parametrize(("stored", "types"), [("fp16", ["fp32", "fp16", "bf16"]), ("bf16", ["fp32", "bf16"])])
def test_a_file_that_does_not_fit_fp16_is_not_computed_in_it(stored, types, monkeypatch):
    monkeypatch.setattr(openvino, "native_floats", lambda library: ["fp32", "fp16", "bf16"])
    assert openvino._rest_types(None, stored) == types


def test_the_builder_learns_the_float_type_that_the_file_had(vit_int8, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(openvino, "_rest_types", lambda library, stored: asked.append(stored) or ["fp32"])
    model = onnx.load(vit_int8)
    for name, change in (("fp32", widen), ("bf16", lambda model: retype(model, "bf16"))):
        change(model)
        onnx.save(model, tmp_path / f"{name}.onnx")
        build_engine(
            tmp_path / f"{name}.onnx", tmp_path / "a.engine", TensorRTConfig(data_type="int8"), backend=BACKEND
        )
    assert asked == ["fp32", "bf16"]


def test_a_note_names_the_backend_whose_engine_was_at_the_same_path(conv_file, tmp_path):
    path = tmp_path / "a.engine"
    for backend in (BACKEND, BACKEND):  # a second one of the same backend is no other engine
        report = build_engine(conv_file, path, TensorRTConfig(), backend=backend)
        assert not any("takes the place" in note for note in report.notes)
    report = build_engine(conv_file, path, TensorRTConfig(), backend=EngineBackend.onnxruntime)
    replaced = f"it takes the place of the engine of openvino that was at {path}; "
    assert report.notes == [f"{replaced}gen_trt_engine.trt_engine names another file, so that both stay"]
    assert json.loads((tmp_path / "a.engine.json").read_text())["notes"] == report.notes


SIGNALLED = """
import faulthandler, gc, signal, sys
from radioplat.exporting.engines.engine_runner import load_engine

faulthandler.enable()  # then handlers of signals have a stack of their own, which OpenVINO replaces
asked = []
signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
first, second = load_engine(sys.argv[1]), load_engine(sys.argv[1])
signal.raise_signal(signal.SIGTERM)
del first
gc.collect()
signal.raise_signal(signal.SIGTERM)
del second
gc.collect()
signal.raise_signal(signal.SIGTERM)
print("asked to stop", len(asked), "times")
"""


def test_a_signal_after_engines_were_freed_in_the_order_of_their_making_ends_nothing(conv_file, tmp_path):
    build_engine(conv_file, tmp_path / "a.engine", TensorRTConfig(), backend=BACKEND)
    command = [sys.executable, "-c", SIGNALLED, str(tmp_path / "a.engine")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "asked to stop 3 times\n"), done.stderr[-2000:]


def test_every_layer_of_a_quantized_vit_takes_an_int8_kernel(vit_int8, tmp_path):
    report = build_engine(vit_int8, tmp_path / "a.engine", TensorRTConfig(data_type="int8"), backend=BACKEND)
    taken, kernels = report.coverage.share("int8")
    assert report.executed and report.coverage.eligible == 15 and taken == kernels >= 13


def test_it_opens_without_its_onnx_file_and_names_a_damaged_one(conv_file, tmp_path):
    path = tmp_path / "a.engine"
    build_engine(conv_file, path, TensorRTConfig(), backend=BACKEND)
    data = path.read_bytes()
    for damaged in (b"", data[:7], data[:100], b"\xff" * 8 + data[8:], data[8:]):
        path.write_bytes(damaged)
        with pytest.raises(EngineError) as caught:
            load_engine(path)
        assert caught.value.problems[0].where == str(path)


@pytest.mark.parametrize(
    ("config", "where"),
    [
        ({"workspace_size": 1}, "workspace_size"),
        ({"layers_precision": ["*:fp16"]}, "layers_precision"),
        ({"compute_capabilities": ["SM86"]}, "compute_capabilities"),
    ],
)
def test_fields_of_gpus_are_refused_by_name(conv_file, tmp_path, config, where):
    with pytest.raises(EngineError, match="openvino does not support this field") as caught:
        build_engine(conv_file, tmp_path / "a.engine", TensorRTConfig(**config), backend=BACKEND)
    assert caught.value.problems[0].where == f"gen_trt_engine.tensorrt.{where}"


def test_fp8_has_no_kernels_for_cpus(conv_fp8, tmp_path):
    with pytest.raises(EngineError, match="no FP8 kernels for CPUs"):
        build_engine(conv_fp8, tmp_path / "a.engine", TensorRTConfig(data_type="fp8"), backend=BACKEND)
