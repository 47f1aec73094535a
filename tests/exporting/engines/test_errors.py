"""What goes wrong with engines: one sentence each, and what to do."""

from __future__ import annotations

import hashlib
import json

import onnx
import pytest
import torch
from onnx import TensorProto, helper

from radioplat.errors import EngineError
from radioplat.exporting.engines.backends.tensorrt_session import cannot_load, check_gpu
from radioplat.exporting.engines.build import build_engine
from radioplat.exporting.engines.engine_runner import load_engine
from radioplat.spec.schema.engine import EngineBackend, TensorRTConfig

RTX, ORT = EngineBackend.tensorrt_rtx, EngineBackend.onnxruntime
RECORD = {"library": "tensorrt_rtx", "version": "1.7.1.116", "compute_capabilities": ["SM86", "SM89"]}
# As TensorRT for RTX says it on a machine without a driver.
NO_CUDA = "IRuntime::deserializeCudaEngine: Error Code 1: Cuda Runtime (In ScopedCudaStream (cudaError 35: CUDA driver "
NO_CUDA += "version is insufficient for CUDA runtime version))"


def one_op(path, operation, domain="", elem_type=TensorProto.FLOAT):
    values = [helper.make_tensor_value_info(name, elem_type, [1, 3, 4, 4]) for name in ("images", "out")]
    node = helper.make_node(operation, ["images"], ["out"], "odd", domain=domain)
    opsets = [helper.make_opsetid("", 18), *([helper.make_opsetid(domain, 1)] if domain else [])]
    graph = helper.make_graph([node], "g", values[:1], values[1:])
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


@pytest.mark.parametrize(
    ("backend", "says"),
    [
        (RTX, r"at node odd \(Mystery\): it does not support this operation. Export the student without it"),
        (ORT, "onnxruntime does not support the operation nowhere:Mystery. Export the student without"),
    ],
)
def test_an_unsupported_operation_is_named(tmp_path, backend, says):
    if backend is RTX:
        pytest.importorskip("tensorrt_rtx_bindings", reason="the `engine` extra is not installed")
    file = one_op(tmp_path / "a.onnx", "Mystery", "nowhere")
    with pytest.raises(EngineError, match=says):
        build_engine(file, tmp_path / "a.engine", TensorRTConfig(), backend=backend)
    assert [path.name for path in tmp_path.iterdir()] == ["a.onnx"]


def test_asymmetric_ranges_point_to_the_linter(conv_int8, tmp_path):
    pytest.importorskip("tensorrt_rtx_bindings", reason="the `engine` extra is not installed")
    model = onnx.load(conv_int8)
    zeros = {node.input[2] for node in model.graph.node if node.op_type == "DequantizeLinear"}
    for tensor in model.graph.initializer:
        if tensor.name in zeros and not tensor.dims:
            tensor.CopyFrom(helper.make_tensor(tensor.name, TensorProto.INT8, [], [3]))
    onnx.save(model, tmp_path / "a.onnx")
    with pytest.raises(EngineError, match=r"\(QuantizeLinear\).*radioplat lint a.onnx"):
        build_engine(tmp_path / "a.onnx", tmp_path / "a.engine", TensorRTConfig(data_type="int8"), backend=RTX)


def test_inputs_that_are_not_float32_are_refused(tmp_path):
    file = one_op(tmp_path / "a.onnx", "Relu", elem_type=TensorProto.FLOAT16)
    with pytest.raises(EngineError, match="onnx_file: images of .* is float16, not float32.*radioplat export"):
        build_engine(file, tmp_path / "a.engine", TensorRTConfig(data_type="fp16"), backend=ORT)


def test_weights_that_are_not_beside_the_file_are_named(conv_bf16, tmp_path):
    config = TensorRTConfig(data_type="bf16")
    (tmp_path / "conv.onnx").write_bytes(conv_bf16.path.read_bytes())
    with pytest.raises(EngineError, match=r"onnx_file: the weights of .* are in conv.onnx.data, which is missing"):
        build_engine(tmp_path / "conv.onnx", tmp_path / "a.engine", config)
    whole = conv_bf16.path.with_name("conv.onnx.data").read_bytes()
    (tmp_path / "conv.onnx.data").write_bytes(whole[:-100])
    with pytest.raises(EngineError, match=rf"conv.onnx.data is cut off: conv.onnx needs \d+ .* are {len(whole) - 100}"):
        build_engine(tmp_path / "conv.onnx", tmp_path / "a.engine", config)


def test_a_gpu_that_the_engine_is_not_for():
    check_gpu(RECORD, (8, 9), "a.engine")
    with pytest.raises(EngineError, match=r"for SM86, SM89 and this GPU is SM120.*compute_capabilities=\[SM120\]"):
        check_gpu(RECORD, (12, 0), "a.engine")


def test_a_driver_that_is_missing_or_too_old():
    text = str(cannot_load(RECORD, "1.7.1.116", [NO_CUDA], None, "a.engine"))
    assert "there is no NVIDIA driver on this machine" in text and "backend=onnxruntime" in text
    text = str(cannot_load(RECORD, "1.7.1.116", [NO_CUDA], "12.2", "a.engine"))
    assert "too old: it has CUDA 12.2 and tensorrt_rtx 1.7.1.116 needs a newer one. Update the driver." in text


def test_another_version_of_the_library():
    text = str(cannot_load(RECORD, "1.8.0.1", ["magic tag does not match"], "13.0", "a.engine"))
    assert "built by tensorrt_rtx 1.7.1.116 and 1.8.0.1 is installed here" in text


def test_bytes_that_are_no_engine_are_not_blamed_on_the_driver(conv_file, tmp_path):
    pytest.importorskip("tensorrt_rtx_bindings", reason="the `engine` extra is not installed")
    if torch.cuda.is_available():
        pytest.skip("another GPU than SM86 would be the first to be named")
    path = tmp_path / "a.engine"
    build_engine(conv_file, path, TensorRTConfig(compute_capabilities=["SM86"]), backend=RTX)
    # Even the hash is right: only TensorRT can tell.
    path.write_bytes(b"garbage" * 1000)
    record = json.loads(path.with_name("a.engine.json").read_text())
    record["engine_sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    path.with_name("a.engine.json").write_text(json.dumps(record))
    with pytest.raises(EngineError, match="cannot load the engine: .*Serialization.*gen_trt_engine` again"):
        load_engine(path)
