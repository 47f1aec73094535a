"""What a quantized student is converted to, against its simulation in torch."""

from __future__ import annotations

import dataclasses
import sys

import pytest
import torch

from radioplat.errors import EngineError
from radioplat.evaluation.models.converted import SNAPPED, converted, snapped
from radioplat.evaluation.models.evaluated_model import student_encoder
from radioplat.exporting.onnx import export
from radioplat.models.quantized.architecture import LayerFormats, Quantization
from radioplat.models.quantized.layers import can_be_quantized
from radioplat.models.quantized.quantizer import quantizers
from radioplat.models.student.student import Student

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def student(radio_student) -> Student:
    plain = radio_student()
    names = [n for n, m in plain.backbone.named_modules(prefix="backbone") if can_be_quantized(m)]
    made = Student(dataclasses.replace(plain.architecture, quantized=Quantization({n: LayerFormats() for n in names})))
    made.load_state_dict(plain.state_dict(), strict=False)
    with torch.no_grad():
        for name, quantizer in quantizers(made).items():
            weight = made.get_submodule(name.rpartition(".")[0]).weight
            quantizer.set_amax(weight.abs().flatten(1).amax(1) if quantizer.axis == 0 else torch.tensor([6.0]))
    return made.eval()


def images() -> torch.Tensor:
    return torch.randint(0, 256, (2, 3, 48, 48), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)


@torch.no_grad()
def test_it_says_what_the_simulation_says(student):
    wanted = student_encoder(student)(images())
    with converted(student, 48) as (model, how):
        found = model.encode(images())
        heads = {n: model.heads.head(n, found) for n in student.head_names}
    assert how
    similar = torch.nn.functional.cosine_similarity
    assert similar(found.summary, wanted.summary).min() > 0.99
    assert similar(found.spatial, wanted.spatial, dim=-1).mean() > 0.99
    for name, head in heads.items():
        assert similar(head.spatial, student.head(name, wanted).spatial, dim=-1).mean() > 0.99


def test_snapped_weights_are_on_the_grid(student):
    plain = snapped(student)
    assert len(quantizers(plain)) == len(quantizers(student)) / 2
    for name, quantizer in quantizers(student).items():
        if name.endswith("weight_quantizer"):
            weight = plain.get_submodule(name.rpartition(".")[0]).weight
            steps = weight / quantizer.settled_scale().view(-1, *[1] * (weight.ndim - 1))
            torch.testing.assert_close(steps, steps.round(), rtol=0, atol=1e-4)
            assert steps.abs().max() <= 127.001
    before, after = student_encoder(student)(images()), student_encoder(plain)(images())
    assert torch.equal(before.spatial, after.spatial)  # rounding what is rounded changes nothing


def test_what_cannot_be_exported_is_snapped_and_said(student, monkeypatch):
    def refuse(*args, **kwargs):
        raise EngineError("no such operator", where="export")

    monkeypatch.setattr(export, "export_onnx", refuse)
    with converted(student, 48) as (model, how):
        assert torch.equal(model.encode(images()).spatial, student_encoder(student)(images()).spatial)
    assert how == f"{SNAPPED} (no such operator)"


def test_without_onnx_it_is_snapped(student, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with converted(student, 48) as (model, how):
        assert model.encode(images()).spatial is not None
    assert how.startswith(SNAPPED) and "onnxruntime, which is not installed" in how
