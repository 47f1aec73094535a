"""Which weights become zero, and that training, whatever its optimizer and ZeRO stage, leaves them there."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from radioplat.compression.pruning.sparsify import sparsify, two_of_four
from radioplat.errors import SpecError
from radioplat.models.modifiers.sparsity import apply_sparsity_mask, own_weight
from radioplat.models.modifiers.spectral import reparametrize
from radioplat.models.student.checkpoint import load_student, save_one_file
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.spec.schema.prune import PruneScope, SparsityConfig, SparsityPattern

KINDS = {
    "radio_vit_tiny_patch16": {"embed_dim": 32, "depth": 2, "num_heads": 2},
    "vit_tiny_patch16_224": {"depth": 1},
    "resnet18": {},
    "convnext_atto": {},
    "mobilenetv2_050": {},
}
HALF = SparsityConfig(SparsityPattern.unstructured)


def student(kind: str = "radio_vit_tiny_patch16") -> Student:
    torch.manual_seed(0)
    return Student(StudentArchitecture(kind, KINDS[kind], img_size=64)).eval()


def zeros_of(student: Student) -> dict[str, torch.Tensor]:
    layers = student.architecture.sparsity.layers
    return {name: own_weight(student.backbone.get_submodule(name)) == 0 for name in layers}


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.integers(1, 6), st.sampled_from([(), (1, 1), (3, 2)]), st.integers(0, 9))
def test_of_every_four_inputs_the_two_largest_stay(out, fours, kernel, seed):
    weight = torch.randn(out, 4 * fours, *kernel, generator=torch.Generator().manual_seed(seed))
    going = two_of_four(weight)
    for place in range(fours):
        group, gone = (t[:, 4 * place : 4 * place + 4].movedim(1, -1) for t in (weight.abs(), going))
        assert (gone.sum(-1) == 2).all()
        assert (group.masked_fill(gone, torch.inf).amin(-1) >= group.masked_fill(~gone, 0).amax(-1)).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pattern", list(SparsityPattern))
def test_what_is_left_is_built_again_to_the_bit(kind, pattern, tmp_path):
    whole = student(kind)
    small, found = sparsify(whole, SparsityConfig(pattern))
    assert 0.49 < found.zeros / found.weights <= 0.5001
    for name, zeros in zeros_of(small).items():
        before, after = (m.backbone.get_submodule(name).weight for m in (whole, small))
        assert torch.equal(after, before.masked_fill(zeros, 0))
    save_one_file(small, tmp_path / "small.safetensors", {})
    again = load_student(tmp_path / "small.safetensors")
    assert again.architecture == small.architecture
    assert all(torch.equal(a, b) for a, b in zip(again.state_dict().values(), small.state_dict().values(), strict=True))
    depthwise = {"convnext_atto": "stages.0.blocks.0.conv_dw", "mobilenetv2_050": "blocks.0.0.conv_dw"}.get(kind)
    if pattern is SparsityPattern.two_of_four and depthwise:
        assert any(name.endswith(depthwise) for name in found.left_out)


@settings(max_examples=15, deadline=None)
@given(st.floats(0.01, 0.99), st.sampled_from(list(PruneScope)))
def test_the_smallest_go_and_as_many_as_asked(amount, scope):
    whole = student()
    small, found = sparsify(whole, SparsityConfig(SparsityPattern.unstructured, amount, scope))
    masks = zeros_of(small)
    sizes = {name: whole.backbone.get_submodule(name).weight.detach().abs() for name in masks}
    if scope is PruneScope.all:
        assert found.zeros == int(amount * found.weights)
        kept = min(size[~masks[name]].min() for name, size in sizes.items() if (~masks[name]).any())
        assert kept >= max(size[masks[name]].max() for name, size in sizes.items() if masks[name].any())
    for name, size in sizes.items() if scope is PruneScope.layer else ():
        assert int(masks[name].sum()) == int(amount * size.numel())
        if masks[name].any():
            assert size[~masks[name]].min() >= size[masks[name]].max()


def test_layers_that_are_left_alone():
    small, found = sparsify(student(), SparsityConfig(SparsityPattern.unstructured, exclude=["blocks.0.*"]))
    assert not any(name.startswith("blocks.0.") for name in small.architecture.sparsity.layers) and found.layers
    with pytest.raises(SpecError, match=r"prune.sparsity.exclude\[0\].*'layer9'"):
        sparsify(student(), SparsityConfig(SparsityPattern.unstructured, exclude=["layer9"]))
    with pytest.raises(SpecError, match="prune.sparsity: no layer .* all are excluded"):
        sparsify(student(), SparsityConfig(SparsityPattern.unstructured, exclude=["*"]))


def test_under_a_scale_zeros_get_no_gradient_either():
    """The scale of a reparametrized layer depends on every entry, zeros included."""
    small, _ = sparsify(student(), HALF)
    zeros = zeros_of(small)
    reparametrize(small.backbone)
    assert apply_sparsity_mask(small.backbone, small.architecture.sparsity) == sum(int(z.sum()) for z in zeros.values())
    small(torch.rand(2, 3, 64, 64)).summary.square().sum().backward()
    for name, gone in zeros.items():
        gradient = own_weight(small.backbone.get_submodule(name)).grad
        assert (gradient[gone] == 0).all() and gradient[~gone].abs().sum() > 0


def test_an_architecture_without_the_field_is_read():
    raw = json.loads(student().architecture.to_json())
    del raw["sparsity"]
    assert StudentArchitecture.from_json(json.dumps(raw)).sparsity is None
