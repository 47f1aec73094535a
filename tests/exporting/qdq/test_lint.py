"""The linter on small graphs, one fault each, and on what onnxruntime's own quantizer places."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from radioplat.cli.main import main
from radioplat.errors import EngineError
from radioplat.exporting.qdq.lint import lint

CHANNELS = 4
ZERO = np.int8(0)


class Net:
    """A graph under construction; each method gives the name of the tensor it makes."""

    def __init__(self) -> None:
        self.nodes: list = []
        self.weights: list = []

    def constant(self, name: str, values) -> str:
        self.weights.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def node(self, kind: str, *inputs: str, name: str, **attributes) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [f"{name}.out"], name=name, **attributes))
        return f"{name}.out"

    def pair(self, x: str, name: str, scale=0.1, zero=ZERO, dq_scale=None, **attributes) -> str:
        """Q and DQ named ``<name>.q`` and ``<name>.dq``."""
        s = self.constant(f"{name}.s", np.asarray(scale, np.float32))
        z = self.constant(f"{name}.z", np.broadcast_to(zero, np.shape(scale)))
        q = self.node("QuantizeLinear", x, s, z, name=f"{name}.q", **attributes)
        if dq_scale is not None:
            s = self.constant(f"{name}.s2", np.float32(dq_scale))
        return self.node("DequantizeLinear", q, s, z, name=f"{name}.dq", **attributes)

    def weight(self, name: str, shape=(CHANNELS, CHANNELS, 1, 1), axis=0, scale=None, dtype=np.int8) -> str:
        """A stored 8-bit weight and its DQ, per channel of ``axis``."""
        w = self.constant(f"{name}.w", np.ones(shape, dtype))
        s = self.constant(f"{name}.ws", np.full(shape[axis], 0.1, np.float32) if scale is None else scale)
        return self.node("DequantizeLinear", w, s, name=f"{name}.wdq", axis=axis)

    def conv(self, x: str, name: str, quantized: bool = True) -> str:
        w = self.weight(name) if quantized else self.constant(f"{name}.w", np.ones((CHANNELS, CHANNELS, 1, 1), "f4"))
        x = self.pair(x, f"{name}.in") if quantized else x
        return self.node("Conv", x, w, self.constant(f"{name}.b", np.zeros(CHANNELS, "f4")), name=name)

    def finish(self, output: str, rank: int = 4) -> onnx.ModelProto:
        value = helper.make_tensor_value_info
        graph = helper.make_graph(
            self.nodes,
            "net",
            [value("x", TensorProto.FLOAT, ["n", CHANNELS, 8, 8])],
            [value(output, TensorProto.FLOAT, ["?"] * rank)],
            self.weights,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        onnx.checker.check_model(model)
        return model


def rules(model) -> list[tuple[str, str]]:
    return [(finding.node, finding.rule) for finding in lint(model).findings]


def residual(net: Net, quantized: bool) -> str:
    """ReLU(conv(x) + x), as a ResNet's block."""
    trunk = net.node("Relu", net.conv("x", "stem"), name="relu")
    identity = net.pair(trunk, "identity") if quantized else trunk
    return net.node("Relu", net.node("Add", net.conv(trunk, "conv"), identity, name="add"), name="last")


def test_a_well_placed_block_is_clean():
    net = Net()
    report = lint(net.finish(residual(net, True)))
    assert (report.layers, report.quantized, report.findings) == (2, 2, [])


def test_a_linear_layer_is_followed_through_transpositions():
    net = Net()
    flat = net.node("Flatten", "x", name="flatten", axis=3)
    turned = net.node("Transpose", net.weight("fc", (3, 8)), name="turn", perm=[1, 0])
    report = lint(net.finish(net.node("MatMul", net.pair(flat, "in"), turned, name="fc"), rank=2))
    assert (report.layers, report.quantized, report.findings) == (1, 1, [])


FAULTS = {}


def fault(*expected):
    def keep(build):
        FAULTS[build.__name__] = (build, list(expected))
        return build

    return keep


@fault(("c", "layer-not-quantized"))
def float_layer(net):
    return net.conv("x", "c", quantized=False)


@fault(("c", "input-without-dq"))
def float_input(net):
    return net.node("Conv", "x", net.weight("c"), name="c")


@fault(("c", "weight-without-dq"))
def float_weight(net):
    return net.node("Conv", net.pair("x", "p"), net.constant("w", np.ones((4, 4, 1, 1), "f4")), name="c")


@fault(("c.wdq", "weight-not-per-channel"))
def weight_per_tensor(net):
    return net.node("Conv", net.pair("x", "p"), net.weight("c", scale=np.float32(0.1)), name="c")


@fault(("c.wdq", "weight-wrong-axis"))
def weight_per_input(net):
    return net.node("Conv", net.pair("x", "p"), net.weight("c", axis=1), name="c")


@fault(("g.wdq", "weight-wrong-axis"))
def gemm_per_input(net):
    flat = net.node("Flatten", "x", name="flatten", axis=3)
    return net.node("Gemm", net.pair(flat, "p"), net.weight("g", (3, 8), axis=1), name="g", transB=1)


@fault(("p.q", "pair-behind-conv"))
def pair_before_relu(net):
    return net.node("Relu", net.pair(net.conv("x", "c"), "p"), name="relu")


@fault(("p.q", "pair-behind-conv"))
def pair_before_bias(net):
    conv = net.pair(net.conv("x", "c"), "p")
    return net.node("Add", conv, net.constant("late", np.zeros((1, 4, 1, 1), "f4")), name="bias")


@fault(("p.q", "pair-behind-conv"))
def pair_before_silu(net):
    x = net.pair(net.conv("x", "c"), "p")
    return net.node("Mul", x, net.node("Sigmoid", x, name="sigmoid"), name="silu")


@fault(("p.q", "pair-behind-conv"))
def pair_before_hardswish(net):
    return net.node("HardSwish", net.pair(net.conv("x", "c"), "p"), name="act")


@fault(("p.q", "pair-behind-conv"))
def pair_before_gelu(net):
    return net.node("Gelu", net.pair(net.conv("x", "c"), "p"), name="act")


@fault(("p.q", "pair-behind-conv"))
def pair_before_the_parts_of_gelu(net):
    x = net.pair(net.conv("x", "c"), "p")
    root = net.node("Div", x, net.constant("root", np.float32(2**0.5)), name="div")
    return net.node("Mul", x, net.node("Erf", root, name="erf"), name="gelu")


@fault(("add", "residual-without-dq"))
def float_residual(net):
    return residual(net, False)


@fault(("a.q", "pair-behind-conv"), ("b.q", "pair-behind-conv"))
def no_conv_left_to_fuse(net):
    return net.node("Add", net.pair(net.conv("x", "c"), "a"), net.pair(net.conv("x", "d"), "b"), name="add")


@fault(("norm", "quantized-normalization"))
def quantized_norm(net):
    scale = net.constant("ns", np.ones(8, "f4"))
    return net.node("LayerNormalization", net.pair("x", "p"), scale, name="norm")


@fault(("p.q", "asymmetric"))
def zero_point(net):
    return net.pair("x", "p", zero=np.int8(3))


@fault(("p.q", "unsigned"))
def uint8(net):
    return net.pair("x", "p", zero=np.uint8(128))


@fault(("bias.dq", "bias-dq"))
def int32_bias(net):
    bias = net.constant("b", np.ones(4, np.int32))
    bias = net.node("DequantizeLinear", bias, net.constant("bs", np.full(4, 0.1, "f4")), name="bias.dq", axis=0)
    return net.node("Conv", net.pair("x", "p"), net.weight("c"), bias, name="c")


@fault(("p.q", "scale-zero"), ("p.dq", "scale-zero"))
def zero_scale(net):
    return net.pair("x", "p", scale=0.0)


@fault(("p.q", "scale-not-constant"), ("p.dq", "scale-not-constant"))
def dynamic_scale(net):
    scale = net.node("ReduceMax", "x", name="max", keepdims=0)
    zero = net.constant("z", np.int8(0))
    q = net.node("QuantizeLinear", "x", scale, zero, name="p.q")
    return net.node("DequantizeLinear", q, scale, zero, name="p.dq")


@fault(("p.q", "q-without-dq"))
def q_alone(net):
    q = net.node("QuantizeLinear", "x", net.constant("s", np.float32(1)), net.constant("z", np.int8(0)), name="p.q")
    return net.node("Cast", q, name="cast", to=TensorProto.FLOAT)


@fault(("dq", "dq-without-q"))
def dq_alone(net):
    cast = net.node("Cast", "x", name="cast", to=TensorProto.INT8)
    return net.node("DequantizeLinear", cast, net.constant("s", np.float32(1)), name="dq")


@fault(("p.q", "unlike-scales"))
def unlike_pair(net):
    return net.pair("x", "p", scale=0.1, dq_scale=0.2)


@fault(("b.q", "double-quantization"))
def twice(net):
    turned = net.node("Transpose", net.pair("x", "a", scale=0.1), name="turn", perm=[0, 2, 3, 1])
    return net.pair(turned, "b", scale=0.2)


@fault(("a.q", "two-scales"))
def two_readers(net):
    return net.node("Mul", net.pair("x", "a", scale=0.1), net.pair("x", "b", scale=0.2), name="mul")


@fault(("a.q", "two-scales"))
def branch_of_a_concatenation(net):
    """A branch that one layer reads alone, and another one joined."""
    joined = net.node("Concat", net.node("Relu", "x", name="relu"), "x", name="cat", axis=2)
    return net.node("Mul", net.pair("x", "a", scale=0.1), net.pair(joined, "b", scale=0.2), name="mul")


@fault(("a.q", "two-scales"))
def two_concatenations(net):
    joined = [net.node("Concat", "x", "x", name=f"cat{i}", axis=2 + i) for i in range(2)]
    return net.node("MatMul", net.pair(joined[0], "a", scale=0.1), net.pair(joined[1], "b", scale=0.2), name="mul")


@fault(("a.q", "two-scales"))
def pooled(net):
    pool = net.node("MaxPool", "x", name="pool", kernel_shape=[1, 1])
    return net.node("Mul", net.pair("x", "a", scale=0.1), net.pair(pool, "b", scale=0.2), name="mul")


@fault(("cat", "two-scales"))
def joined_by_two_scales(net):
    other = net.node("Relu", "x", name="relu")
    return net.node("Concat", net.pair("x", "a", scale=0.1), net.pair(other, "b", scale=0.2), name="cat", axis=1)


@fault()
def joined_by_one_scale(net):
    other = net.node("Relu", "x", name="relu")
    joined = net.node("Concat", net.pair("x", "a", scale=0.1), net.pair(other, "b", scale=0.1), name="cat", axis=1)
    return net.pair(joined, "c", scale=0.1)


@fault()
def averaged(net):
    """Average pooling computes new values, which may have a scale of their own; so may a float concatenation."""
    pool = net.node("AveragePool", "x", name="pool", kernel_shape=[1, 1])
    joined = net.node("Relu", net.node("Concat", "x", pool, name="cat", axis=0), name="relu")
    first, second = net.pair("x", "a", scale=0.1), net.pair(pool, "b", scale=0.2)
    return net.node("Concat", net.node("Mul", first, second, name="mul"), joined, name="out", axis=0)


@fault(("p.q", "activation-per-channel"))
def per_channel_activation(net):
    return net.pair("x", "p", scale=[0.1, 0.2, 0.3, 0.4], axis=1)


@fault(("mm", "half-quantized"))
def half_attention(net):
    return net.node("MatMul", net.pair("x", "p"), "x", name="mm")


@fault(("c", "unlike-formats"))
def fp8_weight(net):
    import ml_dtypes

    weight = net.weight("c", dtype=ml_dtypes.float8_e4m3fn)
    return net.node("Conv", net.pair("x", "p"), weight, name="c")


@fault()
def sum_of_a_convolution_that_another_takes(net):
    trunk = net.node("Relu", net.conv("x", "stem"), name="relu")
    conv = net.conv(trunk, "conv")
    block = net.node("Relu", net.node("Add", conv, trunk, name="add"), name="last")
    return net.node("Mul", block, net.node("Relu", conv, name="other"), name="mul")


@fault()
def pair_behind_a_convolution_that_another_takes(net):
    conv = net.conv("x", "c")
    return net.node("Mul", net.node("Relu", net.pair(conv, "p"), name="relu"), conv, name="mul")


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_named_and_nothing_else(name):
    build, expected = FAULTS[name]
    net = Net()
    assert sorted(rules(net.finish(build(net), rank=2 if name.startswith("gemm") else 4))) == sorted(expected)


def test_layers_that_may_be_float_are_listed_and_not_reported():
    net = Net()
    model = net.finish(net.conv(net.conv("x", "stem"), "head.out", quantized=False))
    assert rules(model) == [("head.out", "layer-not-quantized")]
    report = lint(model, ["head.*"])
    assert (report.findings, report.allowed, report.layers, report.quantized) == ([], ["head.out"], 2, 1)


def test_a_float_input_is_advice_where_weights_alone_are_to_be_quantized():
    net = Net()
    model = net.finish(net.node("Conv", net.node("Conv", "x", net.weight("a"), name="a"), net.weight("b"), name="b"))
    report = lint(model, weight_only=["a"])
    assert [(f.node, f.rule, f.level) for f in report.findings] == [
        ("a", "input-without-dq", "advice"),
        ("b", "input-without-dq", "error"),
    ]


def test_an_addition_without_a_relu_behind_it_is_advice():
    net = Net()
    report = lint(net.finish(net.node("Add", net.conv("x", "c"), "x", name="add")))
    assert [(f.rule, f.level) for f in report.findings] == [("residual-without-dq", "advice")] and not report.errors


class _Reader:
    """Two batches for onnxruntime's calibration."""

    def __init__(self) -> None:
        generator = np.random.default_rng(0)
        self.left = [{"x": generator.normal(size=(1, 4, 8, 8)).astype("f4")} for _ in range(2)]

    def get_next(self):
        return self.left.pop() if self.left else None


def test_what_onnxruntime_places_wrongly_is_found(tmp_path):
    """Its defaults: int32 biases, weights per tensor, unsigned activations, a pair behind every convolution."""
    from onnxruntime.quantization import quantize_static

    net = Net()
    trunk = net.node("Relu", net.conv("x", "stem", quantized=False), name="relu")
    conv = net.node("Conv", trunk, net.constant("w2", np.ones((4, 4, 1, 1), "f4")), name="conv")
    model = net.finish(net.node("Add", conv, trunk, name="add"))
    onnx.save(model, str(tmp_path / "float.onnx"))
    quantize_static(str(tmp_path / "float.onnx"), str(tmp_path / "int8.onnx"), _Reader())
    report = lint(tmp_path / "int8.onnx")
    found = {finding.rule for finding in report.findings}
    assert {"bias-dq", "weight-not-per-channel", "pair-behind-conv"} <= found
    assert found & {"asymmetric", "unsigned"}
    assert (report.layers, report.quantized) == (2, 2)


def test_the_command_prints_findings_and_writes_them(tmp_path, capsys):
    net = Net()
    onnx.save(net.finish(float_residual(net)), str(tmp_path / "bad.onnx"))
    assert main(["lint", str(tmp_path / "bad.onnx"), f"out={tmp_path / 'lint.json'}"]) == 1
    assert "add" in capsys.readouterr().err
    told = json.loads((tmp_path / "lint.json").read_text())
    assert told["lint"][0]["rule"] == "residual-without-dq" and told["quantized"] == 2
    net = Net()
    onnx.save(net.finish(residual(net, True)), str(tmp_path / "good.onnx"))
    assert main(["lint", str(tmp_path / "good.onnx")]) == 0
    assert "2 of 2" in capsys.readouterr().out


def test_what_is_no_onnx_is_told_so(tmp_path):
    with pytest.raises(EngineError, match="there is no ONNX file"):
        lint(tmp_path / "none.onnx")
    (tmp_path / "text.onnx").write_text("a" * 100)
    with pytest.raises(EngineError, match="is not an ONNX file"):
        lint(tmp_path / "text.onnx")
