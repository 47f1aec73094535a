"""Small quantized graphs: a conv net by hand, the ViT of the room above; Q/DQ by onnxruntime, FP8 made of its INT8."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

SIZE = 32


class Noise(CalibrationDataReader):
    """Two batches of noise images."""

    def __init__(self, size: int) -> None:
        generator = np.random.default_rng(0)
        self._left = [{"images": generator.random((4, 3, size, size), np.float32)} for _ in range(2)]

    def get_next(self):
        return self._left.pop() if self._left else None


def conv_net(path: Path, opset: int = 19) -> Path:
    """Conv, Relu, Conv with a residual branch, mean, Gemm, for images ``[batch, 3, 32, 32]``."""
    generator = np.random.default_rng(0)
    shapes = {"a": (16, 3, 3, 3), "b": (16, 16, 3, 3), "fc": (8, 16)}
    weights = {f"{name}.weight": generator.normal(0, 0.1, shape) for name, shape in shapes.items()}
    weights |= {f"{name}.bias": generator.normal(0, 0.1, shape[0]) for name, shape in shapes.items()}
    tensors = [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()]
    tensors.append(numpy_helper.from_array(np.array([2, 3]), "axes"))
    same = {"pads": [1] * 4, "kernel_shape": [3, 3]}
    nodes = [
        helper.make_node("Conv", ["images", "a.weight", "a.bias"], ["a"], "node_a", **same),
        helper.make_node("Relu", ["a"], ["relu"], "node_relu"),
        helper.make_node("Conv", ["relu", "b.weight", "b.bias"], ["b"], "node_b", **same),
        helper.make_node("Add", ["b", "relu"], ["sum"], "node_sum"),
        helper.make_node("ReduceMean", ["sum", "axes"], ["mean"], "node_mean", keepdims=0),
        helper.make_node("Gemm", ["mean", "fc.weight", "fc.bias"], ["summary"], "node_fc", transB=1),
    ]
    for node in nodes:
        scope = node.name.removeprefix("node_")
        entry = node.metadata_props.add()
        entry.key, entry.value = "pkg.torch.onnx.name_scopes", str(["", f"backbone.{scope}", scope])
    values = [
        helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 3, SIZE, SIZE]),
        helper.make_tensor_value_info("summary", TensorProto.FLOAT, ["batch", 8]),
    ]
    graph = helper.make_graph(nodes, "net", values[:1], values[1:], tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10), path)
    return path


def quantized(source: Path, target: Path, size: int) -> Path:
    """INT8 Q/DQ around the operands of convolutions and linear layers."""
    products = ["Conv", "Gemm", "MatMul"]
    quantize_static(
        str(source),
        str(target),
        Noise(size),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        op_types_to_quantize=products,
        activation_type=QuantType.QInt8,
        weight_type=QuantType.QInt8,
        extra_options={
            "ActivationSymmetric": True,
            "WeightSymmetric": True,
            "QuantizeBias": False,
            "AddQDQPairToWeight": True,
            "OpTypesToExcludeOutputQuantization": products,
        },
    )
    return target


def as_fp8(source: Path, target: Path) -> Path:
    """The same graph with FP8 (e4m3fn) where ``source`` has INT8: zero points retyped, scales for an amax of 448."""
    model = onnx.load(source)
    pairs = [node for node in model.graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")]
    scales, zeros = {node.input[1] for node in pairs}, {node.input[2] for node in pairs}
    for tensor in model.graph.initializer:
        if tensor.name in zeros:
            count = int(np.prod(tensor.dims, dtype=int))
            fresh = helper.make_tensor(tensor.name, TensorProto.FLOAT8E4M3FN, list(tensor.dims), [0.0] * count)
            tensor.CopyFrom(fresh)
        elif tensor.name in scales:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float32(127 / 448), tensor.name))
    next(entry for entry in model.opset_import if entry.domain == "").version = 19
    del model.graph.value_info[:]
    onnx.save(model, target)
    return target


@pytest.fixture(scope="session")
def conv_file(folder) -> Path:
    """The conv net, fp32."""
    return conv_net(folder / "tiny_conv.onnx")


@pytest.fixture(scope="session")
def conv_int8(conv_file, folder) -> Path:
    """The conv net in INT8."""
    return quantized(conv_file, folder / "tiny_conv_int8.onnx", SIZE)


@pytest.fixture(scope="session")
def conv_fp8(conv_int8, folder) -> Path:
    """The conv net in FP8."""
    return as_fp8(conv_int8, folder / "tiny_conv_fp8.onnx")


@pytest.fixture(scope="session")
def vit_int8(vit_fp32, folder) -> Path:
    """The ViT with its heads in INT8."""
    return quantized(vit_fp32.path, folder / "vit_int8.onnx", 48)
