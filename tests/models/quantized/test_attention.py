"""Rounded operands of attention: against the formula written out, in a student, and in its file."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from radioplat.compression.quantization.quantize_model import quantize_model
from radioplat.errors import SpecError
from radioplat.exporting.engines.build import build_engine
from radioplat.exporting.onnx.export import export_in_halves
from radioplat.models.quantized.attention import NAME, OPERANDS, quantize_attention
from radioplat.models.quantized.quantizer import quantizers
from radioplat.models.student.checkpoint import load_student
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.models.vision_model import save_model
from radioplat.spec.schema.engine import EngineBackend, TensorRTConfig
from radioplat.spec.schema.quantize import QuantizeConfig

SIZE = 48
VIT = StudentArchitecture("test_vit", {"img_size": SIZE, "depth": 2}, img_size=SIZE)


class Block(nn.Module):
    """Attention with every argument that vision models give."""

    def forward(self, q, k, v, **options):
        return F.scaled_dot_product_attention(q, k, v, **options) + 1


@pytest.mark.parametrize("mask", [None, "bool", "float"])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_it_is_the_formula_with_rounded_operands(mask, scale):
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 4, 6, 8)
    given = {
        None: None,
        "bool": torch.rand(6, 6) > 0.3,
        "float": torch.randn(6, 6),
    }[mask]
    block = Block()
    quantize_attention(block, "int8")
    found = quantizers(block)
    assert set(found) == {f"{NAME}.{operand}" for operand in OPERANDS}
    for name, quantizer in found.items():
        quantizer.set_amax(torch.tensor([1.0 if name.endswith("weights") else 3.0]))
    rounded = {name.rpartition(".")[2]: quantizer for name, quantizer in found.items()}
    scores = rounded["query"](q) @ rounded["key"](k).mT * (8**-0.5 if scale is None else scale)
    if mask == "bool":
        scores = scores.masked_fill(~given, float("-inf"))
    elif mask == "float":
        scores = scores + given
    wanted = rounded["weights"](scores.softmax(-1)) @ rounded["value"](v) + 1
    torch.testing.assert_close(block(q, k, v, attn_mask=given, scale=scale), wanted)
    for quantizer in found.values():
        quantizer.enabled = False
    torch.testing.assert_close(
        block(q, k, v, attn_mask=given, scale=scale), Block()(q, k, v, attn_mask=given, scale=scale)
    )
    with pytest.raises(NotImplementedError, match="causal"):
        block(q, k, v, is_causal=True)


@pytest.fixture(scope="module")
def student() -> Student:
    torch.manual_seed(0)
    return Student(VIT).eval()


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.randint(0, 256, (4, 3, SIZE, SIZE), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


@pytest.mark.parametrize("format", ["int8", "fp8_e4m3fn"])
def test_a_student_keeps_its_features_and_comes_back(student, images, format, tmp_path):
    done = quantize_model(student, QuantizeConfig(attention=format, default_layer_dtype=format), [images])
    how = done.model.architecture.quantized
    assert list(how.attention) == [f"backbone.model.blocks.{i}.attn" for i in range(2)]
    assert min(done.cosine.values()) > 0.98
    save_model(done.model, tmp_path)
    with torch.no_grad():
        assert torch.equal(load_student(tmp_path).eval()(images).summary, done.model(images).summary)


def test_the_file_has_both_products_quantized_and_runs(student, images, tmp_path):
    made = quantize_model(student, QuantizeConfig(attention="int8"), [images]).model
    report = export_in_halves(made, tmp_path / "a.onnx", height=SIZE, width=SIZE)
    assert report.quantized.lint.errors == [] and report.quantized.cosine > 0.98
    pytest.importorskip("tensorrt_rtx_bindings", reason="the `engine` extra is not installed")
    config = TensorRTConfig(data_type="int8")
    engine = build_engine(report.path, tmp_path / "a.engine", config, backend=EngineBackend.tensorrt_rtx)
    assert set(engine.coverage.others) == {"int8"}, engine.coverage.others


def test_wrong_requests_name_the_field(student, images):
    with pytest.raises(SpecError, match=r"quantize.attention: no module of this student calls fused attention"):
        quantize_model(
            Student(StudentArchitecture("resnet10t", img_size=SIZE)).eval(), QuantizeConfig(attention="int8"), [images]
        )
    made = quantize_model(student, QuantizeConfig(attention="int8", skip_names=["blocks.0.attn"]), [images]).model
    assert list(made.architecture.quantized.attention) == ["backbone.model.blocks.1.attn"]
