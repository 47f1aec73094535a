"""A student with quantizers: built from plain data, saved, copied, trained a step."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from radioplat.errors import SpecError, WeightsError
from radioplat.models.backbones.timm_backbone import TimmBackbone
from radioplat.models.quantized.architecture import LayerFormats, Quantization
from radioplat.models.quantized.fake_quantize import fake_quantize
from radioplat.models.quantized.layers import can_be_quantized, quantize_layer
from radioplat.models.quantized.quantizer import in_float, quantizers
from radioplat.models.quantized.residual_quantizer import has_identity_branch, quantize_residual
from radioplat.models.student.checkpoint import STUDENT_FILE, STUDENT_KEY, load_student, read_architecture, save_student
from radioplat.models.student.student import Student, StudentArchitecture


def quantized(student: Student) -> Student:
    """Every layer in int8, but one in fp8 and one whose activations stay float."""
    names = [n for n, m in student.named_modules() if can_be_quantized(m)]
    layers = {n: LayerFormats() for n in names}
    layers[names[1]] = LayerFormats("fp8", "fp8", per_channel=False)
    layers[names[2]] = LayerFormats("int4", None)
    how = Quantization(layers, skipped={"heads.x": "a regression output"})
    architecture = StudentArchitecture(**{**vars(student.architecture), "quantized": how})
    torch.manual_seed(1)
    made = Student(architecture).eval()
    with torch.no_grad():
        for quantizer in quantizers(made).values():
            quantizer.scale.uniform_(0.01, 0.1)
    return made


def test_saved_and_opened_bit_equal(radio_student, image_batch, tmp_path):
    student = quantized(radio_student())
    save_student(student, student.state_dict(), tmp_path)
    opened = load_student(tmp_path)
    assert opened.architecture == student.architecture
    before, after = student.state_dict(), opened.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[k], after[k]) for k in before)
    images = image_batch()
    assert torch.equal(student(images).summary, opened(images).summary)
    for copied in (copy.deepcopy(student), pickle.loads(pickle.dumps(student))):
        assert torch.equal(student(images).spatial, copied(images).spatial)


def test_without_its_quantizers_it_is_the_plain_student(radio_student, image_batch):
    plain = radio_student()
    student = quantized(plain)
    assert not student.load_state_dict(plain.state_dict(), strict=False).unexpected_keys
    images = image_batch()
    with in_float(student):
        assert torch.equal(student(images).spatial, plain(images).spatial)
    assert not torch.equal(student(images).spatial, plain(images).spatial)


def test_layers_and_scales_get_gradients(radio_student, image_batch):
    student = quantized(radio_student()).train()
    student(image_batch()).spatial.square().mean().backward()
    found = quantizers(student.backbone)
    assert all(q.scale.grad is not None and q.scale.grad.isfinite().all() for q in found.values())
    assert sum(float(q.scale.grad.abs().sum()) > 0 for q in found.values()) > len(found) // 2
    assert all(p.grad is not None for n, p in student.backbone.named_parameters() if n.endswith("qkv.weight"))


def test_a_convolution_rounds_its_input_and_weight():
    torch.manual_seed(0)
    for conv in (
        nn.Conv2d(4, 6, 3, stride=2, padding=1),
        nn.Conv2d(4, 8, 3, groups=4, padding=1, padding_mode="reflect"),
    ):
        weight, x = conv.weight.detach().clone(), torch.randn(2, 4, 8, 8)
        reference = copy.deepcopy(conv)
        quantize_layer(conv, "int8", "int8")
        scales = torch.rand(weight.shape[0]) * 0.01 + 0.001
        conv.weight_quantizer.scale.data, conv.input_quantizer.scale.data = scales, torch.tensor([0.03])
        reference.weight.data = fake_quantize(weight, scales, 0, "int8")
        assert torch.equal(conv(x), reference(fake_quantize(x, torch.tensor([0.03]), -1, "int8")))
        assert {n for n, _ in conv.named_parameters()} >= {"weight", "bias"}


def test_tensorflows_padding_stays():
    model = TimmBackbone("tf_efficientnet_lite0").eval()
    x = torch.randn(1, 3, 33, 33)
    before = model.model.conv_stem(x)
    quantize_layer(model.model.conv_stem, "int8", "int8")
    with in_float(model):
        assert torch.equal(model.model.conv_stem(x), before)
    with pytest.raises(TypeError, match="no quantized layer stands for BatchNorm"):
        quantize_layer(nn.BatchNorm2d(3), "int8", "int8")


@pytest.mark.parametrize("name", ["resnet18", "tf_efficientnet_lite0", "mobilenetv3_small_050"])
@torch.no_grad()
def test_residual_branches_are_rounded_and_nothing_else(name):
    torch.manual_seed(0)
    model = TimmBackbone(name).eval()
    blocks = [(n, m) for n, m in model.named_modules() if has_identity_branch(m)]
    assert len(blocks) == {"resnet18": 8, "tf_efficientnet_lite0": 9, "mobilenetv3_small_050": 7}[name]
    images = torch.randn(1, 3, 64, 64)
    before, names = model(images).spatial, set(model.state_dict())
    for _, block in blocks:
        quantize_residual(block, "int8")
    with in_float(model):
        assert torch.allclose(model(images).spatial, before, rtol=1e-5, atol=1e-6)
    added = set(model.state_dict()) - names
    assert len(added) == len(blocks) and all(n.endswith("residual_quantizer.scale") for n in added)
    assert not torch.equal(model(images).spatial, before)
    with pytest.raises(TypeError, match="adds no identity branch"):
        quantize_residual(nn.Linear(2, 2), "int8")


def test_spectral_weights_are_refused(radio_student):
    with pytest.raises(SpecError, match="model.backbone.spectral_reparam"):
        radio_student(quantized=Quantization(), spectral_reparam=True)


@pytest.mark.parametrize("name", ["backbone.blocks.9.attn.qkv", "backbone.norm"])
def test_quantizers_of_another_student_are_refused(radio_student, name):
    with pytest.raises(SpecError, match="train.pretrained_model_path: the quantizers of the pretrained student"):
        radio_student(quantized=Quantization({name: LayerFormats()}))


@pytest.mark.parametrize("place", ["weights", "activations", "residual"])
def test_a_format_of_another_version_is_an_error_of_the_checkpoint(tmp_path, place):
    form = StudentArchitecture("test_vit", img_size=32)
    layer = {"weights": "int8", "activations": "int8"} | ({} if place == "residual" else {place: "fp2"})
    how = Quantization({"backbone.x": LayerFormats(**layer)}, {"backbone": "fp2"} if place == "residual" else {})
    metadata = {STUDENT_KEY: replace(form, quantized=how).to_json()}
    save_file({"x": torch.zeros(1)}, tmp_path / STUDENT_FILE, metadata)
    with pytest.raises(WeightsError, match="describes a model that radioplat .* cannot read"):
        read_architecture(tmp_path)
