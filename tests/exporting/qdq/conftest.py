"""Small quantized students, calibrated by hand: weights by their maxima, activations by those on a few images."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from radioplat.exporting.onnx.export import OnnxReport, export_onnx
from radioplat.models.heads import HeadArchitecture
from radioplat.models.quantized.architecture import LayerFormats, Quantization
from radioplat.models.quantized.quantizer import in_float, quantizers
from radioplat.models.quantized.residual_quantizer import has_identity_branch
from radioplat.models.student.student import Student, StudentArchitecture

SIZE = 32
VIT = StudentArchitecture(
    "radio_vit_tiny_patch16",
    {"embed_dim": 32, "depth": 2, "num_heads": 2},
    img_size=SIZE,
    heads=(HeadArchitecture("clip", summary_dim=12, hidden=16),),
)
CNN = StudentArchitecture("test_resnet", img_size=SIZE)


def quantized_student(architecture: StudentArchitecture, formats: LayerFormats, exclude: str = "heads") -> Student:
    """A student with random weights and BatchNorm folded, every layer but those of ``exclude`` quantized."""
    torch.manual_seed(0)
    plain = Student(architecture).eval()
    layers, skipped, folded, last = {}, {}, [], ""
    for name, module in plain.named_modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            last = name
            if name.startswith(exclude):
                skipped[name] = "excluded"
            else:
                layers[name] = formats
        elif isinstance(module, nn.BatchNorm2d):
            folded.append([last, name])
    blocks = (name for name, module in plain.named_modules() if has_identity_branch(module))
    residuals = dict.fromkeys(blocks, formats.activations or "int8")
    how = Quantization(layers, residuals, folded, skipped=skipped)
    student = Student(replace(architecture, quantized=how)).eval()
    student.load_state_dict(plain.state_dict(), strict=False)
    for name, quantizer in quantizers(student).items():
        if name.endswith("weight_quantizer"):
            weight = student.get_submodule(name.rpartition(".")[0]).weight
            quantizer.set_amax(weight.abs().flatten(1).amax(1))
        else:
            quantizer.register_forward_pre_hook(_observe)
    images = torch.rand(8, 3, SIZE, SIZE)
    with torch.no_grad(), in_float(student):
        features = student(images)
        for name in student.head_names:
            student.head(name, features)
    for quantizer in quantizers(student).values():
        quantizer._forward_pre_hooks.clear()
    return student


def _observe(quantizer, inputs) -> None:
    quantizer.set_amax(inputs[0].abs().amax().reshape(1))


@pytest.fixture(scope="session")
def int8_vit() -> Student:
    return quantized_student(VIT, LayerFormats())


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Where the session's quantized exports lie; tests read them and write elsewhere."""
    return tmp_path_factory.mktemp("qdq")


@pytest.fixture(scope="session")
def int8_vit_onnx(int8_vit, folder) -> OnnxReport:
    """Dynamic batch, a head in floats, and the graph without Q/DQ beside it."""
    (folder / "vit").mkdir()
    path = folder / "vit" / "vit.onnx"
    return export_onnx(
        int8_vit, path, height=SIZE, width=SIZE, adaptors=["clip"], float_path=path.with_name("vit.float.onnx")
    )
