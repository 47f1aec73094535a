"""Layers that read one tensor share its scale: after calibration, after training, in a copy and in a checkpoint."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from radioplat.compression.quantization.quantize_model import quantize_model, shared_scales
from radioplat.exporting.onnx.export import export_onnx
from radioplat.models.quantized.layers import quantize_layer
from radioplat.models.quantized.quantizer import count_scales, quantizers
from radioplat.models.student.checkpoint import load_student
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.models.vision_model import save_model
from radioplat.spec.schema.quantize import QuantizeConfig

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
