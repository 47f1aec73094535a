"""The operator against its formula, and what holds of every value it gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from radioplat.models.quantized.fake_quantize import NumberFormat, fake_quantize
from radioplat.models.quantized.quantizer import Quantizer, in_float, quantizers

FORMATS = list(NumberFormat)
numbers = st.lists(st.floats(-8192, 8192, width=32, allow_subnormal=False), min_size=1, max_size=30)
scales = st.floats(2**-12, 1024, width=32)


@given(numbers, scales, st.sampled_from([NumberFormat.int8, NumberFormat.int4]))
@settings(deadline=None, max_examples=60)
def test_integers_on_the_grid(values, scale, format):
    x, s = torch.tensor(values), torch.tensor([scale])
    y = fake_quantize(x, s, -1, format)
    steps = (y / s).round()
    assert torch.equal(steps * s, y) and steps.max() <= format.highest and steps.min() >= -format.highest - 1
    inside = x.abs() <= s * format.highest
    assert ((x - y).abs()[inside] <= s * 0.5 * (1 + 1e-5) + 1e-6 * x.abs()[inside]).all()


@given(numbers, scales, st.sampled_from(FORMATS))
@settings(deadline=None, max_examples=60)
def test_once_is_enough_and_the_sign_is_free(values, scale, format):
    x, s = torch.tensor(values), torch.tensor([scale])
    y = fake_quantize(x, s, -1, format)
    inside = x.abs() <= s * format.highest
    assert torch.equal(fake_quantize(-x, s, -1, format)[inside], -y[inside])
    assert torch.equal(fake_quantize(x, -s, -1, format), y)  # of a scale only the magnitude counts
    s = 2.0 ** s.log2().round()  # by which a quotient is exact, whatever it is of
    y = fake_quantize(x, s, -1, format)
    assert torch.equal(fake_quantize(y, s, -1, format), y)


def test_fp8_values():
    x = torch.tensor([0.0, 1.0, 1.06, 1.07, 17.0, 19.0, 448.0, 1e6, -1e6, 2.0**-9, 2.0**-11])
    assert fake_quantize(x, torch.ones(1), -1, "fp8").tolist() == [
        0.0, 1.0, 1.0, 1.125, 16.0, 20.0, 448.0, 448.0, -448.0, 2.0**-9, 0.0,
    ]  # fmt: skip


@given(numbers, scales)
@settings(deadline=None, max_examples=60)
def test_int8_is_that_of_onnx(values, scale):
    """Beyond the range, too; its reference implementation of QuantizeLinear and DequantizeLinear."""
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [None])
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    constants = [numpy_helper.from_array(np.float32(scale), "s"), numpy_helper.from_array(np.int8(0), "z")]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None])
    graph = helper.make_graph(nodes, "pair", [value], [output], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)])
    x = np.array(values, np.float32)
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    assert fake_quantize(torch.from_numpy(x), torch.tensor([scale]), -1, "int8").tolist() == expected.tolist()


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_gradients_are_those_of_the_written_out_formula(format, axis):
    torch.manual_seed(0)
    x = (torch.randn(3, 4, 5, dtype=torch.float32) * 3).requires_grad_()
    count = 1 if axis == -1 else x.shape[axis]
    s = ((torch.rand(count) + 3) / format.highest).requires_grad_()  # so that some of x is beyond its range
    up = torch.randn_like(x)
    fake_quantize(x, s, axis, format).backward(up)

    x2, s2 = x.detach().clone().requires_grad_(), s.detach().clone().requires_grad_()
    shape = [count if d == axis else 1 for d in range(3)] if axis != -1 else [1] * 3
    # LSQ: the scale's gradient is scaled, its value is not.
    factor = (x.numel() / count * format.highest) ** -0.5
    scaled = (s2 * factor + (s2 - s2 * factor).detach()).reshape(shape)
    clipped = (x2 / scaled).clamp(-format.highest - (format is not NumberFormat.fp8), format.highest)
    rounded = clipped.to(torch.float8_e4m3fn).float() if format is NumberFormat.fp8 else clipped.round()
    ((clipped + (rounded - clipped).detach()) * scaled).backward(up)
    assert torch.allclose(x.grad, x2.grad, atol=1e-6)
    assert torch.allclose(s.grad, s2.grad, rtol=1e-4, atol=1e-5)
    assert 0 < (x.grad == 0).sum() < x.numel()


def test_the_operator_keeps_pytorchs_contract():
    for axis, scale in ((-1, torch.tensor([0.1])), (1, torch.rand(4) + 0.1)):
        arguments = (torch.randn(2, 4, requires_grad=True), scale.requires_grad_(), axis, "int8")
        checks = ("test_schema", "test_autograd_registration", "test_faketensor")
        torch.library.opcheck(torch.ops.radioplat.fake_quantize.default, arguments, test_utils=checks)


def test_export_keeps_it_whole():
    program = torch.export.export(Quantizer("fp8", 4, axis=1), (torch.randn(2, 4),))
    calls = [n for n in program.graph.nodes if n.target is torch.ops.radioplat.fake_quantize.default]
    assert len(calls) == 1 and calls[0].args[2:] == (1, "fp8")


def test_bf16_in_bf16_out_computed_in_fp32():
    quantizer = Quantizer("int8")
    quantizer.set_amax(torch.tensor([3.0]))
    x = torch.randn(64).bfloat16()
    assert torch.equal(quantizer(x), quantizer(x.float()).bfloat16())
    quantizer.bfloat16()(x).float().sum().backward()
    assert quantizer.scale.grad.dtype == torch.bfloat16


def test_scales_of_another_number_are_refused():
    with pytest.raises(ValueError, match="3 scales for 4 along axis 1"):
        fake_quantize(torch.zeros(2, 4), torch.ones(3), 1, "int8")
    with pytest.raises(ValueError, match="int3"):
        fake_quantize(torch.zeros(2, 4), torch.ones(1), -1, "int3")


def test_a_quantizer_knows_its_range():
    quantizer = Quantizer("int8", 3)
    quantizer.set_amax(torch.tensor([127.0, 0.0, 254.0]))
    assert quantizer.scale.tolist() == [1.0, 2.0, 2.0] and quantizer.amax.tolist() == [127.0, 254.0, 254.0]
    quantizer.set_amax(torch.zeros(3))
    assert quantizer.amax.tolist() == [1.0, 1.0, 1.0]
    layer = torch.nn.Sequential(quantizer)
    assert list(quantizers(layer)) == ["0"]
    x = torch.full((3, 1), 0.3)
    with in_float(layer):
        assert torch.equal(layer(x), x)
    assert not torch.equal(layer(x), x)
