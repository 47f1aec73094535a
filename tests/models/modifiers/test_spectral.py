"""Spectral reparametrization against singular values, and its way into plain weights."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from radioplat.errors import SpecError
from radioplat.models.heads import HeadArchitecture
from radioplat.models.modifiers import spectral
from radioplat.models.pretrained.initial_weights import start_student
from radioplat.models.student.checkpoint import load_student, read_architecture, save_student
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.spec.loading.load import load_spec

PLAIN = StudentArchitecture(
    "c_radio_v3_vit_base_patch16_reg4_dinov2",
    dict(embed_dim=32, depth=2, num_heads=2, patch_size=8),
    img_size=32,
    heads=(HeadArchitecture("a", 4, 5, hidden=8),),
)
SPECTRAL = dataclasses.replace(PLAIN, spectral_reparam=True)


def largest(weight: torch.Tensor, parts: int) -> torch.Tensor:
    """Largest singular value of each group of rows."""
    return torch.stack([torch.linalg.matrix_norm(w, ord=2) for w in weight.detach().chunk(parts)])


def layers(student: Student) -> dict[str, nn.Module]:
    return {n: m for n, m in student.backbone.named_modules() if parametrize.is_parametrized(m)}


def test_the_start_is_the_plain_start():
    plain, student = start_student(load_spec(), PLAIN).eval(), start_student(load_spec(), SPECTRAL).eval()
    images = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(student(images).spatial, plain(images).spatial)
    assert len(layers(student)) == 8  # qkv, proj, fc1, fc2 of two blocks


def test_gamma_is_the_norm_of_each_of_q_k_and_v():
    student = start_student(load_spec(), SPECTRAL)
    for name, layer in layers(student).items():
        parts = 3 if name.endswith("qkv") else 1
        scaling = layer.parametrizations.weight[0]
        assert scaling.gamma.shape == (parts,)
        for _ in range(200):
            spectral.follow(layer)
        with torch.no_grad():
            scaling.gamma.copy_(torch.arange(1.0, parts + 1))
        torch.testing.assert_close(largest(layer.weight, parts), scaling.gamma.detach(), rtol=1e-3, atol=0)


def test_the_scale_of_the_matrix_says_nothing():
    torch.manual_seed(0)
    weight = torch.randn(6, 5, requires_grad=True)
    scaling = spectral.SpectralWeight(weight)
    torch.testing.assert_close(scaling(3.0 * weight), scaling(weight))
    (scaling(weight) * torch.randn(6, 5)).sum().backward()
    # f(c W) = f(W) for all c, so by Euler the gradient is orthogonal to W.
    torch.testing.assert_close((weight.grad * weight).sum(), torch.zeros(()), atol=1e-5, rtol=0)
    assert weight.grad.abs().max() > 0.1


def test_gradient_is_that_of_the_formula():
    torch.manual_seed(0)
    weight = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    scaling = spectral.SpectralWeight(weight, iterations=500)
    out = torch.randn(6, 4)
    (scaling(weight).float() * out).sum().backward()
    exact = weight.detach().clone().requires_grad_()
    (scaling.gamma.detach() / torch.linalg.matrix_norm(exact, ord=2) * exact * out).sum().backward()
    torch.testing.assert_close(weight.grad, exact.grad, rtol=1e-3, atol=1e-4)


def test_vectors_follow_the_matrix_and_only_when_told():
    torch.manual_seed(0)
    student = start_student(load_spec(), SPECTRAL).train()
    before = {k: v.clone() for k, v in student.state_dict().items()}
    student(torch.rand(2, 3, 32, 32)).spatial.sum().backward()
    assert all(torch.equal(v, before[k]) for k, v in student.state_dict().items())
    with torch.no_grad():
        for layer in layers(student).values():
            layer.parametrizations.weight.original.copy_(torch.randn_like(layer.weight))
    for _ in range(300):
        spectral.follow(student)
    for layer in layers(student).values():
        scaling = layer.parametrizations.weight[0]
        torch.testing.assert_close(largest(layer.weight, len(scaling.gamma)), scaling.gamma.detach(), rtol=2e-3, atol=0)


def test_vectors_in_bf16_still_measure():
    torch.manual_seed(0)
    weight = torch.randn(64, 32)
    scaling = spectral.SpectralWeight(weight, iterations=200)
    rounded = copy.deepcopy(scaling).bfloat16()
    rounded.gamma.data = scaling.gamma.data
    torch.testing.assert_close(rounded(weight), scaling(weight), rtol=1e-4, atol=1e-5)


def test_plain_weights_say_the_same():
    student = start_student(load_spec(), SPECTRAL).eval()
    with torch.no_grad():
        for layer in layers(student).values():
            layer.parametrizations.weight[0].gamma.mul_(1.5)
    images, tensors = torch.rand(2, 3, 32, 32), student.state_dict()
    said = student(images).spatial
    plain = Student(PLAIN).eval()
    plain.load_state_dict(spectral.plain_tensors(tensors))
    torch.testing.assert_close(plain(images).spatial, said)
    folded = copy.deepcopy(student).fold()
    assert folded.architecture == PLAIN and set(folded.state_dict()) == set(plain.state_dict())
    torch.testing.assert_close(folded(images).spatial, said)
    assert student.architecture == SPECTRAL  # the copy's own


class TestCheckpoint:
    @pytest.fixture
    def trained(self) -> Student:
        student = start_student(load_spec(), SPECTRAL).eval()
        with torch.no_grad():
            for p in student.parameters():
                p.add_(0.05 * torch.randn_like(p))
        return student

    @pytest.fixture
    def saved(self, trained, tmp_path):
        save_student(trained, trained.state_dict(), tmp_path)
        return tmp_path

    def test_a_trained_student_opens_plain(self, trained, saved):
        assert read_architecture(saved) == SPECTRAL  # as a run needs it to go on
        opened, images = load_student(saved), torch.rand(2, 3, 32, 32)
        assert not layers(opened) and opened.architecture == PLAIN
        torch.testing.assert_close(opened(images).spatial, trained(images).spatial)

    @pytest.mark.parametrize("field", ["model.backbone.pretrained_backbone_path", "train.pretrained_model_path"])
    @pytest.mark.parametrize("architecture", [PLAIN, SPECTRAL], ids=["plain", "spectral"])
    def test_a_start_from_either_into_either(self, trained, saved, field, architecture, tmp_path):
        images = torch.rand(2, 3, 32, 32)
        opened = load_student(saved)
        (again := tmp_path / "plain").mkdir()
        save_student(opened, opened.state_dict(), again)
        for path in (saved, again):
            student = start_student(load_spec(None, [f"{field}={path}"]), architecture).eval()
            assert student.architecture == architecture and bool(layers(student)) == architecture.spectral_reparam
            torch.testing.assert_close(student(images).spatial, trained(images).spatial)


def test_what_is_no_vit_is_refused():
    with pytest.raises(SpecError) as caught:
        Student(StudentArchitecture("test_resnet", spectral_reparam=True))
    assert caught.value.problems[0].where == "model.backbone.spectral_reparam"


def test_a_timm_vit_can():
    student = start_student(load_spec(), StudentArchitecture("test_vit", spectral_reparam=True)).eval()
    plain = start_student(load_spec(), StudentArchitecture("test_vit")).eval()
    images = torch.rand(1, 3, 64, 64)
    assert layers(student)
    torch.testing.assert_close(student(images).spatial, plain(images).spatial)
