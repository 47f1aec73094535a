"""Layers that read one tensor share its scale: after calibration, after training, in a copy and in a checkpoint."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from radioplat.compression.quantization.calibrate import calibrate
from radioplat.compression.quantization.quantize_model import quantize_model
from radioplat.compression.quantization.shared_scales import shared_scales
from radioplat.exporting.onnx.export import export_onnx
from radioplat.models.quantized.layers import quantize_layer
from radioplat.models.quantized.quantizer import count_scales, quantizers
from radioplat.models.student.checkpoint import load_student
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.models.vision_model import save_model
from radioplat.spec.schema.quantize import QuantizeConfig
from tests.helpers.drawn_student import drawn_student

SIZE = 64


@pytest.fixture(scope="module")
def trained() -> Student:
    """A quantized ResNet after a few steps in which each scale went its own way."""
    torch.manual_seed(0)
    student = Student(StudentArchitecture("resnet18", {"zero_init_last": False}, img_size=SIZE)).eval()
    for module in student.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_var.uniform_(0.5, 1.5)
    made = quantize_model(
        student, QuantizeConfig(), [torch.randint(0, 256, (4, 3, SIZE, SIZE), dtype=torch.uint8)]
    ).model
    optimizer = torch.optim.SGD(made.parameters(), lr=1e-3)
    for _ in range(3):
        optimizer.zero_grad()
        made(torch.rand(2, 3, SIZE, SIZE)).summary.square().mean().backward()
        optimizer.step()
    with torch.no_grad():
        for number, (_, parameter) in enumerate((n, p) for n, p in made.named_parameters() if n.endswith("scale")):
            parameter.mul_(1 + 0.01 * (number % 7))
    return made


def test_the_branches_of_a_block_read_by_one_scale(trained):
    found, names = quantizers(trained), dict(trained.named_parameters())
    conv, branch, identity = (
        f"backbone.model.{name}"
        for name in (
            "layer2.0.conv1.input_quantizer",
            "layer2.0.downsample.0.input_quantizer",
            "layer1.0.downsample.residual_quantizer",
        )
    )
    assert found[conv].scale is found[branch].scale and f"{branch}.scale" not in names and f"{conv}.scale" in names
    assert found[identity].scale is found["backbone.model.layer1.0.conv1.input_quantizer"].scale
    assert trained.architecture.quantized.shared[branch] == conv
    assert count_scales(trained) < sum(quantizer.scale.numel() for quantizer in found.values())


def test_the_file_has_no_tensor_with_two_scales(trained, tmp_path):
    report = export_onnx(trained, tmp_path / "a.onnx", height=SIZE, width=SIZE)
    assert report.quantized.lint.errors == [] and report.quantized.cosine > 0.99


def test_a_checkpoint_and_a_copy_share_among_themselves(trained, tmp_path):
    save_model(trained, tmp_path)
    images = torch.rand(2, 3, SIZE, SIZE)
    with torch.no_grad():
        wanted = trained(images).summary
        for other in (load_student(tmp_path).eval(), copy.deepcopy(trained)):
            assert torch.equal(other(images).summary, wanted)
            own = quantizers(other)
            for name, leader in trained.architecture.quantized.shared.items():
                assert own[name].scale is own[leader].scale and own[name].scale is not quantizers(trained)[name].scale


class Reads(nn.Module):
    """Layers that read a tensor, the same in another shape, half of it, and what an operation in place made of it."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.ModuleDict({name: nn.Linear(2 if name == "c" else 4, 4) for name in "abcd"})
        for layer in self.part.values():
            quantize_layer(layer, "int8", "int8")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        part = self.part
        out = part["a"](y) + part["b"](y.reshape(2, 3, 4)).flatten(0, 1) + part["c"](y[:, :2])
        return out + part["d"](y.relu_())


def test_only_the_same_values_are_shared():
    model = Reads()
    with torch.no_grad():
        shared = shared_scales(model, lambda: model(torch.randn(6, 4)))
    assert shared == {"part.b.input_quantizer": "part.a.input_quantizer"}


class Joins(nn.Module):
    """Branches joined and rounded, joined and not rounded, pooled by the largest and by the mean, and a longer way."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.ModuleDict({name: nn.Conv2d(8 if name in "ch" else 4, 4, 1) for name in "abcdefgh"})
        for layer in self.part.values():
            quantize_layer(layer, "int8", "int8")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        part = self.part
        y, z = x * 3, x * 2
        joined = part["c"](torch.cat([y, z], 1))
        largest = part["d"](nn.functional.max_pool2d(z, 3, 1, 1))
        mean = part["e"](nn.functional.avg_pool2d(y, 3, 1, 1))
        u, v = x * 5, x * 7
        out = part["a"](y) + part["b"](z) + joined + largest + mean + part["f"](u) + part["g"](v)
        return out + part["h"](torch.cat([u, v], 1).relu())


def test_branches_of_a_rounded_concatenation_and_what_is_pooled_from_them_have_one_scale():
    model = Joins()
    with torch.no_grad():
        shared = shared_scales(model, lambda: model(torch.randn(1, 4, 5, 5)))
    assert shared == {f"part.{name}.input_quantizer": "part.c.input_quantizer" for name in "dab"}


@pytest.fixture(scope="module")
def joined() -> Student:
    """VoVNet joins the outputs of its layers, and each layer reads the one before; calibrated by percentiles."""
    config = QuantizeConfig(algorithm="percentile", percentile=99.9)
    images = torch.randint(0, 256, (2, 3, SIZE, SIZE), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    return quantize_model(drawn_student("ese_vovnet19b_slim", SIZE), config, [images]).model


def test_a_family_that_joins_branches_is_exported_with_one_scale_each(joined, tmp_path):
    shared, own = joined.architecture.quantized.shared, quantizers(joined)
    concat = "backbone.model.stages.0.blocks.0.conv_concat.conv.input_quantizer"
    group = {name for name, leader in shared.items() if leader == shared.get(concat)}
    assert concat in group and len(group) >= 3
    assert all(own[name].scale is own[shared[concat]].scale for name in group)
    report = export_onnx(joined, tmp_path / "a.onnx", height=SIZE, width=SIZE)
    assert report.quantized.lint.errors == []
    # With a scale for each layer the linter reports the file.
    apart = copy.deepcopy(joined)
    for number, name in enumerate(group):
        quantizer = apart.get_submodule(name)
        scale = nn.Parameter(quantizer.scale.detach() * (1 + 0.1 * number))
        del quantizer.__dict__["leader"]
        quantizer.scale = scale
    errors = export_onnx(apart, tmp_path / "b.onnx", height=SIZE, width=SIZE).quantized.lint.errors
    assert errors and {finding.rule for finding in errors} == {"two-scales"}


def test_a_shared_scale_is_calibrated_by_all_that_it_rounds():
    torch.manual_seed(0)
    model = Joins()
    images = torch.randn(1, 4, 5, 5)
    with torch.no_grad():
        for name, leader in shared_scales(model, lambda: model(images)).items():
            model.get_submodule(name).follow(model.get_submodule(leader))
        calibrate(model, QuantizeConfig(), lambda: model(images))
    own = quantizers(model)
    # The last one that reads by this scale is `b`, of 2 x; the joined tensor has 3 x, too.
    for name in "abcd":
        torch.testing.assert_close(own[f"part.{name}.input_quantizer"].amax, 3 * images.abs().max().reshape(1))
