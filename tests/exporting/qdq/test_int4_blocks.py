"""4-bit weights as TensorRT has them, in blocks, with float activations: judged by onnxruntime and by a builder."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper

import radioplat
from radioplat.compression.quantization.quantize_model import quantize_model
from radioplat.errors import EngineError
from radioplat.exporting.engines.build import build_engine
from radioplat.exporting.onnx.export import export_onnx
from radioplat.models.student.checkpoint import save_student
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.spec.schema.engine import EngineBackend, TensorRTConfig
from radioplat.spec.schema.quantize import QuantizeConfig, QuantizeMode

SIZE = 32
WIDE = StudentArchitecture("radio_vit_tiny_patch16", {"embed_dim": 128, "depth": 2, "num_heads": 2}, img_size=SIZE)


@pytest.fixture(scope="module")
def images():
    return torch.randint(0, 256, (4, 3, SIZE, SIZE), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)


@pytest.fixture(scope="module")
def made(images):
    """A ViT with 4-bit weights in blocks of 64."""
    torch.manual_seed(0)
    config = QuantizeConfig(mode=QuantizeMode.weight_only_ptq, default_layer_dtype="int4", block_size=64)
    return quantize_model(Student(WIDE).eval(), config, [images]).model


@pytest.fixture(scope="module")
def exported(made, tmp_path_factory):
    return export_onnx(made, tmp_path_factory.mktemp("int4") / "s.onnx", height=SIZE, width=SIZE, data_type="fp16")


def test_the_file_has_a_scale_for_each_block_and_says_what_torch_says(made, exported, images, tmp_path):
    assert exported.quantized.lint.errors == [] and exported.quantized.cosine > 0.999
    model = onnx.load(exported.path)
    layers = [node for node in model.graph.node if node.op_type == "DequantizeLinear"]
    assert len(layers) == len(made.architecture.quantized.layers) == 9
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in layers:
        settings = {entry.name: helper.get_attribute_value(entry) for entry in node.attribute}
        weight, scale = (stored[name] for name in node.input[:2])
        assert settings == {"axis": 0, "block_size": 64} and weight.data_type == TensorProto.INT4
        assert list(scale.dims) == [weight.dims[0] // 64, weight.dims[1]]  # inputs by outputs, as MatMul reads them
        assert len(weight.raw_data) == weight.dims[0] * weight.dims[1] // 2
    # In fp32, read by a runtime that knows blocks from ONNX's standard alone.
    report = export_onnx(made, tmp_path / "plain.onnx", height=SIZE, width=SIZE)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(report.path), options, providers=["CPUExecutionProvider"])
    (found,) = session.run(["summary"], {"images": (images / 255).numpy()})
    with torch.no_grad():
        np.testing.assert_allclose(found, made(images).summary.numpy(), atol=1e-3 * np.abs(found).max())


def test_scales_are_the_largest_magnitudes_of_blocks_by_numpy(made):
    layer = made.backbone.blocks[1].mlp.fc2  # 512 inputs
    blocks = layer.weight.detach().numpy().reshape(128, 8, 64)
    np.testing.assert_allclose(layer.weight_quantizer.scale.detach().numpy(), np.abs(blocks).max(-1) / 7, rtol=1e-6)
    rounded = np.clip(np.rint(blocks / (np.abs(blocks).max(-1) / 7)[..., None]), -8, 7)
    wanted = (rounded * (np.abs(blocks).max(-1) / 7)[..., None]).reshape(128, 512)
    np.testing.assert_allclose(layer.weight_quantizer(layer.weight).detach().numpy(), wanted, rtol=1e-5, atol=1e-7)


def test_the_gradient_of_each_scale_is_lsqs_of_its_block(made):
    quantizer, weight = made.backbone.blocks[0].attn.qkv.weight_quantizer, made.backbone.blocks[0].attn.qkv.weight
    torch.manual_seed(0)
    upstream = torch.randn_like(weight)
    (grad,) = torch.autograd.grad((quantizer(weight) * upstream).sum(), quantizer.scale)
    v = (weight.detach().unflatten(1, (2, 64)) / quantizer.scale.detach()[..., None]).double()
    part = torch.where((v >= -8) & (v <= 7), v.clamp(-8, 7).round() - v, v.clamp(-8, 7).round())
    wanted = (part * upstream.unflatten(1, (2, 64))).sum(-1) / np.sqrt(64 * 7)
    torch.testing.assert_close(grad.double(), wanted, rtol=1e-4, atol=1e-6)


def test_they_are_kept_in_what_is_saved(made, images, tmp_path):
    save_student(made, made.state_dict(), tmp_path)
    opened = radioplat.load_student(tmp_path)
    assert opened.backbone.blocks[0].attn.qkv.weight_quantizer.scale.shape == (384, 2)
    assert torch.equal(opened(images).summary, made(images).summary)


def test_blocks_are_as_large_as_fits_and_other_layers_stay_floats(images):
    narrow = StudentArchitecture("radio_vit_tiny_patch16", {"embed_dim": 96, "depth": 1, "num_heads": 2}, img_size=SIZE)
    config = QuantizeConfig(mode=QuantizeMode.weight_only_ptq, default_layer_dtype="int4")
    how = quantize_model(Student(narrow).eval(), config, [images]).model.architecture.quantized
    blocks = {name.rpartition(".")[2]: formats.block for name, formats in how.layers.items()}
    assert blocks == {"embedder": 128, "fc2": 128}
    why = how.skipped["backbone.blocks.0.mlp.fc1"]
    assert why == "its 96 inputs are no multiple of a block of 128 or 64 4-bit weights"

    convolutions = Student(StudentArchitecture("test_vit", img_size=SIZE)).eval()
    how = quantize_model(convolutions, config, [images]).model.architecture.quantized
    assert how.skipped["backbone.model.patch_embed.proj"].startswith("a convolution: engines have 4-bit weights")


def test_a_builder_takes_blocks_and_other_4_bit_weights_are_refused_before_it(exported, images, tmp_path):
    pytest.importorskip("tensorrt_rtx_bindings", reason="the `engine` extra is not installed")
    config = TensorRTConfig(data_type="int8", compute_capabilities=["SM89"])
    built = build_engine(exported.path, tmp_path / "s.engine", config, backend=EngineBackend.tensorrt_rtx)
    assert built.coverage.quantized == {"int4": 9}
    torch.manual_seed(0)
    beside = quantize_model(Student(WIDE).eval(), QuantizeConfig(default_layer_dtype="int4"), [images]).model
    report = export_onnx(beside, tmp_path / "w4a8.onnx", height=SIZE, width=SIZE)
    assert {finding.rule for finding in report.quantized.lint.errors} == {"int4-not-in-blocks"}
    with pytest.raises(EngineError, match="4-bit weights in blocks of 128 or 64, with float activations; backbone"):
        build_engine(report.path, tmp_path / "w4a8.engine", config, backend=EngineBackend.tensorrt_rtx)
