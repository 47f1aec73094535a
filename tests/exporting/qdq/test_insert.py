"""Quantized students as Q/DQ graphs, judged by onnxruntime, by the linter, and by a TensorRT builder."""

from __future__ import annotations

import json
import re

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, numpy_helper

from radioplat.errors import EngineError
from radioplat.exporting.engines.build import build_engine
from radioplat.exporting.onnx.export import export_in_halves, export_onnx
from radioplat.exporting.qdq.graph import DEQUANTIZE, QUANTIZE
from radioplat.exporting.qdq.ranges import activation_scales
from radioplat.models.quantized.architecture import LayerFormats
from radioplat.models.quantized.quantizer import in_float, quantizers
from radioplat.spec.schema.engine import EngineBackend, TensorRTConfig

from .conftest import CNN, SIZE, VIT, quantized_student


def run(path, images: torch.Tensor, names: list[str]) -> list[torch.Tensor]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return [torch.from_numpy(a) for a in session.run(names, {"images": images.numpy()})]


def kinds(model) -> list[str]:
    return [node.op_type for node in model.graph.node]


def test_the_file_computes_what_torch_rounds_to(int8_vit, int8_vit_onnx):
    images = torch.rand(3, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        features = int8_vit(images)
        wanted = [features.summary, features.spatial, int8_vit.head("clip", features).summary]
        with in_float(int8_vit):
            floats = int8_vit(images).summary
    got = run(int8_vit_onnx.path, images, ["summary", "spatial", "clip.summary"])
    for a, b in zip(got, wanted, strict=True):
        assert (a - b).abs().max() < 5e-3 * b.abs().max()
    # The rounding itself is far larger than what the two disagree by.
    assert (floats - wanted[0]).abs().max() > 3 * (got[0] - wanted[0]).abs().max()


def test_every_quantizer_is_one_pair_and_weights_are_stored_as_int8(int8_vit, int8_vit_onnx):
    model = onnx.load(int8_vit_onnx.path)
    count, weights = len(quantizers(int8_vit)), len(int8_vit.architecture.quantized.layers)
    assert kinds(model).count(DEQUANTIZE) == count and kinds(model).count(QUANTIZE) == count - weights
    assert {entry.domain for entry in model.opset_import} == {""}
    qkv = next(t for t in model.graph.initializer if t.name == "backbone.blocks.0.attn.qkv.weight_quantized")
    assert qkv.data_type == TensorProto.INT8 and list(qkv.dims) == [32, 96]  # turned for MatMul
    layer = int8_vit.backbone.blocks[0].attn.qkv
    step = layer.weight_quantizer.settled_scale()
    whole = (layer.weight / step[:, None]).round().clamp(-127, 127).detach().numpy().T
    assert np.array_equal(numpy_helper.to_array(qkv), whole)
    assert not [t.name for t in model.graph.initializer if t.name.endswith("qkv.weight")]


def test_the_linter_finds_nothing_and_knows_what_stays_float(int8_vit_onnx):
    report = int8_vit_onnx.quantized
    assert report.lint.findings == [] and report.lint.quantized == 9
    assert report.lint.allowed == ["heads.clip.summary.fc1", "heads.clip.summary.final.2"]
    assert json.loads(int8_vit_onnx.path.with_name("lint.json").read_text())["lint"] == []


def test_ranges_name_tensors_of_both_graphs(int8_vit, int8_vit_onnx):
    told = json.loads(int8_vit_onnx.path.with_name("ranges.json").read_text())
    assert set(told[0]) >= {"tensor", "amax", "scale", "axis", "source"}
    by_source = {entry["source"]: entry for entry in told}
    assert set(by_source) == set(quantizers(int8_vit))
    entry = by_source["backbone.blocks.1.mlp.fc2.input_quantizer"]
    quantizer = int8_vit.backbone.blocks[1].mlp.fc2.input_quantizer
    assert entry["scale"] == pytest.approx(quantizer.scale.item()) and entry["axis"] == -1
    assert entry["amax"] == pytest.approx(127 * entry["scale"])
    per_channel = by_source["backbone.blocks.1.mlp.fc2.weight_quantizer"]
    assert len(per_channel["scale"]) == 32 and per_channel["axis"] == 0
    plain = onnx.load(int8_vit_onnx.path.with_name("vit.float.onnx"))
    names = {name for node in plain.graph.node for name in node.input}
    assert set(activation_scales(int8_vit_onnx.quantized.ranges)) <= names


def test_the_graph_without_pairs_computes_in_floats(int8_vit, int8_vit_onnx):
    path = int8_vit_onnx.path.with_name("vit.float.onnx")
    assert not {QUANTIZE, DEQUANTIZE, "FakeQuantize"} & set(kinds(onnx.load(path)))
    images = torch.rand(2, 3, SIZE, SIZE)
    inputs = [q for name, q in quantizers(int8_vit).items() if not name.endswith("weight_quantizer")]
    with torch.no_grad(), in_float(*inputs):
        wanted = int8_vit(images).summary
        with in_float(int8_vit):
            assert not torch.allclose(int8_vit(images).summary, wanted, rtol=1e-4, atol=1e-4), "weights are rounded"
    torch.testing.assert_close(run(path, images, ["summary"])[0], wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("architecture", "formats", "data_type", "stored"),
    [
        (CNN, LayerFormats(), "fp16", TensorProto.INT8),
        (VIT, LayerFormats("fp8", "fp8"), "fp32", TensorProto.FLOAT8E4M3FN),
        pytest.param(CNN, LayerFormats("int4", "fp8"), "bf16", TensorProto.FLOAT8E4M3FN, marks=pytest.mark.proof),
    ],
    ids=["int8-cnn", "fp8-vit", "w4a8-cnn"],
)
def test_other_formats_and_mixed_precision(architecture, formats, data_type, stored, tmp_path):
    student = quantized_student(architecture, formats)
    report = export_onnx(student, tmp_path / "q.onnx", height=SIZE, width=SIZE, batch_size=2, data_type=data_type)
    assert report.quantized.cosine > 0.999 and report.quantized.lint.errors == []
    model = onnx.load(report.path)
    types = {t.data_type for t in model.graph.initializer if t.name.endswith("_quantized")}
    assert types == {stored}
    rest = {t.data_type for t in model.graph.initializer if t.name.endswith(".scale")}
    wanted = {"fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}.get(data_type, TensorProto.FLOAT)
    assert rest == {wanted}
    values = sum(student.get_submodule(name).weight.numel() for name in student.architecture.quantized.layers)
    bits = 4 if stored == TensorProto.INT4 else 8
    kept = sum(len(t.raw_data) for t in model.graph.initializer if t.name.endswith("_quantized"))
    assert kept == values * bits // 8
    pytest.importorskip("tensorrt_rtx_bindings", reason="the `engine` extra is not installed")
    config = TensorRTConfig(data_type=str(formats.activations), compute_capabilities=["SM89"])
    built = build_engine(report.path, tmp_path / "q.engine", config, backend=EngineBackend.tensorrt_rtx)
    assert built.kernels[str(formats.activations)] == report.quantized.lint.quantized, built.kernels


@pytest.mark.proof
def test_weights_as_floats_behind_pairs_give_the_same_features(tmp_path):
    student = quantized_student(VIT, LayerFormats())
    images, paths = torch.rand(2, 3, SIZE, SIZE), [tmp_path / "stored.onnx", tmp_path / "float.onnx"]
    for path, stored in zip(paths, (True, False), strict=True):
        export_onnx(student, path, height=SIZE, width=SIZE, batch_size=2, stored_weights=stored)
    a, b = (run(path, images, ["summary"])[0] for path in paths)
    assert torch.equal(a, b)
    model = onnx.load(paths[1])
    assert kinds(model).count(QUANTIZE) == kinds(model).count(DEQUANTIZE)
    assert paths[0].stat().st_size < 0.6 * paths[1].stat().st_size


def test_activations_of_4_bits_are_refused(tmp_path):
    student = quantized_student(VIT, LayerFormats("int8", "int4"))
    with pytest.raises(EngineError, match="is rounded to int4. Quantize activations to int8 or fp8"):
        export_onnx(student, tmp_path / "q.onnx", height=SIZE, width=SIZE, batch_size=1)
    assert list(tmp_path.iterdir()) == []


def test_a_scale_that_fp16_does_not_hold_is_named(tmp_path):
    student = quantized_student(VIT, LayerFormats())
    with torch.no_grad():
        student.backbone.blocks[0].mlp.fc1.input_quantizer.scale.fill_(1e-9)
    with pytest.raises(EngineError, match=r"blocks.0.mlp.fc1.input_quantizer is 1e-09, which fp16 cannot represent"):
        export_onnx(student, tmp_path / "q.onnx", height=SIZE, width=SIZE, batch_size=1, data_type="fp16")


@pytest.mark.parametrize(
    ("scale", "options", "data_type", "note"),
    [
        (None, {}, "fp16", ""),
        (1e-9, {}, "bf16", "are not in fp16: the scale of .* is 1e-09, which fp16 cannot represent"),
        (None, {"tensorrt_version": "8.6.1", "stored_weights": False}, "fp32", "reads ONNX up to operator set 17"),
    ],
)
def test_layers_that_are_not_quantized_are_in_halves_where_that_is_possible(scale, options, data_type, note, tmp_path):
    student = quantized_student(VIT, LayerFormats())
    if scale:
        with torch.no_grad():
            student.backbone.blocks[0].mlp.fc1.input_quantizer.scale.fill_(scale)
    report = export_in_halves(student, tmp_path / "q.onnx", height=SIZE, width=SIZE, batch_size=1, **options)
    assert report.data_type == data_type and re.search(note, " ".join(report.notes))
    code = {"fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16, "fp32": TensorProto.FLOAT}[data_type]
    assert {t.data_type for t in onnx.load(report.path).graph.initializer if t.name.endswith(".scale")} == {code}


def test_a_tensor_that_overflows_before_a_pair_keeps_the_file_out_of_fp16(tmp_path):
    """QuantizeLinear makes 127 of infinity, so the features stay finite."""
    student = quantized_student(CNN, LayerFormats())
    first, second = (student.get_submodule(f"backbone.model.layer1.0.conv{i}") for i in (1, 2))
    with torch.no_grad():  # of a channel that nothing reads
        first.bias[0] = 1e5
        second.weight[:, 0] = 0
    size = {"height": SIZE, "width": SIZE, "batch_size": 1}
    with pytest.raises(EngineError, match="overflows in fp16: .* is not finite") as caught:
        export_onnx(student, tmp_path / "q.onnx", data_type="fp16", **size)
    assert caught.value.problems[0].where == "export.data_type"
    report = export_in_halves(student, tmp_path / "q.onnx", **size)
    assert report.data_type == "bf16" and "overflows in fp16" in report.notes[0]


def test_the_limit_of_the_cosine_holds_for_the_file_in_halves(tmp_path):
    student, path = quantized_student(VIT, LayerFormats()), tmp_path / "q.onnx"
    size = {"height": SIZE, "width": SIZE, "batch_size": 3}
    cosines = {
        name: export_onnx(student, path, data_type=name, **size).quantized.cosine for name in ("fp32", "fp16", "bf16")
    }
    assert cosines["fp32"] > cosines["fp16"] > cosines["bf16"]
    limit = (cosines["fp16"] + cosines["bf16"]) / 2
    assert export_onnx(student, path, data_type="fp16", least_cosine=limit, **size).quantized.cosine == cosines["fp16"]
    with pytest.raises(EngineError, match="in bf16 has cosine .*export.least_cosine") as caught:
        export_onnx(student, path, data_type="bf16", least_cosine=limit, **size)
    assert caught.value.problems[0].where == "export.data_type"
    limit = (cosines["fp32"] + cosines["fp16"]) / 2
    report = export_in_halves(student, path, least_cosine=limit, **size)
    assert report.data_type == "fp32" and len(report.notes) == 2


def test_a_student_with_quantized_weights_alone_ends_in_an_engine_that_multiplies_in_floats(tmp_path):
    student = quantized_student(VIT, LayerFormats(activations=None))
    report = export_onnx(student, tmp_path / "s.onnx", height=SIZE, width=SIZE)
    found = report.quantized.lint
    assert {f.rule for f in found.findings} == {"input-without-dq"} and not found.errors
    config = TensorRTConfig(data_type="fp32")
    built = build_engine(report.path, tmp_path / "s.engine", config, backend=EngineBackend.onnxruntime)
    assert built.executed and built.execution["max_relative_error"] < 0.02  # its fused kernels round elsewhere
    assert built.coverage.quantized == {}
