"""Decomposition against its closed form, and students of low rank built again to the bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from radioplat.compression.cost import cost_of
from radioplat.compression.low_rank import decompose, rank_for
from radioplat.compression.pruning.prune import prune_model
from radioplat.compression.pruning.scores import ChannelScore
from radioplat.compression.pruning.sparsify import sparsify
from radioplat.errors import SpecError
from radioplat.models.heads import HeadArchitecture
from radioplat.models.modifiers.low_rank import pair, splittable
from radioplat.models.modifiers.spectral import materialise, reparametrize
from radioplat.models.student.checkpoint import load_student, save_one_file
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.spec.schema.low_rank import LowRankConfig
from radioplat.spec.schema.prune import PruneConfig, PrunePart, SparsityConfig, SparsityPattern

HEAD = HeadArchitecture("clip", summary_dim=12, spatial_dim=10, hidden=16, num_inner=1)
KINDS = {
    "radio_vit_tiny_patch16": {"embed_dim": 64, "depth": 2, "num_heads": 4},
    "vit_tiny_patch16_224": {"depth": 1},
    "resnet14t": {},
    "convnext_atto": {},
    "mobilenetv2_050": {},
}


def student(kind: str = "radio_vit_tiny_patch16") -> Student:
    torch.manual_seed(0)
    return Student(StudentArchitecture(kind, KINDS[kind], img_size=64, heads=(HEAD,))).eval()


def images() -> torch.Tensor:
    return torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def product(two: nn.Sequential) -> torch.Tensor:
    return two[1].weight.detach().flatten(1).double() @ two[0].weight.detach().flatten(1).double()


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 20))
def test_the_error_is_the_energy_that_went(rank):
    """Eckart and Young: the squared distance of the best matrix of rank r is the sum of the squares beyond r."""
    whole = student()
    small, found = decompose(whole, LowRankConfig(rank=rank, include=["blocks.*"]))
    for name in found.ranks:
        before = whole.backbone.get_submodule(name).weight.detach().double()
        values = torch.linalg.svdvals(before)
        error = (before - product(small.backbone.get_submodule(name))).square().sum()
        assert error.item() == pytest.approx(values[rank:].square().sum().item(), rel=1e-5)
        share = values[:rank].square().sum() / values.square().sum()
        assert found.energies[name] == pytest.approx(share.item())


@pytest.mark.parametrize("layer", [nn.Linear(24, 40), nn.Conv2d(24, 40, 1, stride=2), nn.Conv2d(40, 24, 1, bias=False)])
def test_at_full_rank_nothing_is_lost(layer):
    """A rank that saves nothing is not taken; here it is, by hand, and the layer says what it said."""
    width = layer.weight.shape[1]
    left, values, right = torch.linalg.svd(layer.weight.detach().flatten(1).double(), full_matrices=False)
    two = pair(layer, len(values))
    with torch.no_grad():
        two[0].weight.copy_((values.sqrt()[:, None] * right).view_as(two[0].weight))
        two[1].weight.copy_((left * values.sqrt()).view_as(two[1].weight))
        if layer.bias is not None:
            two[1].bias.copy_(layer.bias)
        x = torch.randn(3, width) if isinstance(layer, nn.Linear) else torch.randn(3, width, 8, 8)
        assert torch.allclose(two(x), layer(x), atol=1e-5) and two(x).shape == layer(x).shape


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=30), st.floats(0.01, 0.99))
def test_the_rank_is_the_least_that_keeps_the_energy(values, energy):
    falling = torch.tensor(sorted(values, reverse=True), dtype=torch.float64)
    rank = rank_for(falling, (len(values), len(values)), LowRankConfig(energy=energy))
    kept = falling.square().cumsum(0) / falling.square().sum()
    assert kept[rank - 1] >= energy - 1e-12 and (rank == 1 or kept[rank - 2] < energy + 1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_left_is_built_again_to_the_bit(kind, tmp_path):
    whole = student(kind)
    small, found = decompose(whole, LowRankConfig(ratio=0.4))
    before, after = cost_of(whole.backbone, 64), cost_of(small.backbone, 64)
    assert after.params < before.params and after.macs < before.macs
    for name in found.ranks:
        old, two = whole.backbone.get_submodule(name), small.backbone.get_submodule(name)
        assert sum(m.weight.numel() for m in two) <= 0.4 * old.weight.numel() or found.ranks[name] == 1
    save_one_file(small, tmp_path / "small.safetensors", {})
    again = load_student(tmp_path / "small.safetensors")
    with torch.no_grad():
        assert torch.equal(again(images()).summary, small(images()).summary)
        assert torch.equal(again(images()).spatial, small(images()).spatial)


def test_after_pruning_and_beside_zeros():
    asked = PruneConfig(parts=list(PrunePart), amount=0.25, blocks=1)
    pruned = prune_model(student(), asked, ChannelScore(asked), images())[0]
    sparse, _ = sparsify(pruned, SparsityConfig(SparsityPattern.unstructured))
    small, found = decompose(sparse, LowRankConfig(ratio=0.4, include=["blocks.*.mlp.*"]))
    held = small.architecture.sparsity.layers
    assert set(found.ranks) == {"blocks.0.mlp.fc1", "blocks.0.mlp.fc2"} and not set(held) & set(found.ranks) and held
    again = Student(StudentArchitecture.from_json(small.architecture.to_json())).eval()
    again.load_state_dict(small.state_dict())
    assert torch.equal(again(images()).summary, small(images()).summary)
    with pytest.raises(SpecError, match="prune.checkpoint: a student of low rank cannot be pruned"):
        prune_model(small, asked, ChannelScore(asked), images())
    twice, more = decompose(small, LowRankConfig(ratio=0.4))
    assert set(twice.architecture.low_rank) == set(found.ranks) | set(more.ranks)
    assert not any(name.startswith("blocks.0.mlp") for name in more.ranks)


def test_a_pair_may_be_reparametrized():
    small, _ = decompose(student(), LowRankConfig(ratio=0.4, include=["blocks.*"]))
    said = small(images()).summary
    reparametrize(small.backbone)
    assert torch.allclose(small(images()).summary, said, atol=1e-4)
    materialise(small.backbone)
    assert torch.allclose(small(images()).summary, said, atol=1e-4)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"rank": 64, "include": ["blocks.*"]}, "low_rank: nothing gets smaller: none of the 8 selected layers"),
        ({"rank": 2, "include": ["layer9"]}, r"low_rank.include\[0\]: no linear layer .* 'layer9'"),
        ({"rank": 2, "exclude": ["layer9"]}, r"low_rank.exclude\[0\]: no linear layer .* 'layer9'"),
    ],
)
def test_what_cannot_be_is_named(asked, said):
    with pytest.raises(SpecError, match=said):
        decompose(student(), LowRankConfig(**asked))


def test_what_can_be_split():
    assert splittable(nn.Linear(2, 2)) and splittable(nn.Conv2d(2, 2, 1))
    for other in (nn.Conv2d(2, 2, 3), nn.Conv2d(2, 2, 1, groups=2), nn.Conv2d(2, 2, 1, padding=1), nn.Identity()):
        assert not splittable(other)
