"""What pruning leaves runs, is what was there, and is built again from its description to the bit."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from radioplat.compression.cost import cost_of
from radioplat.compression.pruning.groups import groups_of, trace, units_to_remove
from radioplat.compression.pruning.prune import Aim, dry_run, prune_alike, prune_model
from radioplat.compression.pruning.removed_share import removed_share, share_of_rest
from radioplat.compression.pruning.scores import ChannelScore
from radioplat.compression.pruning.sparsify import sparsify
from radioplat.errors import SpecError
from radioplat.models.heads import HeadArchitecture
from radioplat.models.student.checkpoint import load_student, save_one_file
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.spec.schema.prune import (
    PruneConfig,
    PruneMode,
    PrunePart,
    PruneSchedule,
    PruneScope,
    PruneScore,
    SparsityConfig,
    SparsityPattern,
)

HEAD = HeadArchitecture("clip", summary_dim=12, spatial_dim=10, hidden=16, num_inner=1)
FAMILIES = {
    "radio_vit_tiny_patch16": {"embed_dim": 64, "depth": 3, "num_heads": 4},
    "vit_tiny_patch16_224": {"depth": 2},
    "resnet18": {},
    "convnext_atto": {},
    "efficientnet_lite0": {},
    "mobilenetv2_050": {},
}


def student(kind: str, seed: int = 0, **changes) -> Student:
    torch.manual_seed(seed)
    return Student(StudentArchitecture(kind, FAMILIES[kind], img_size=64, heads=(HEAD,), **changes)).eval()


def images(seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def pruned(whole: Student, **config) -> Student:
    asked = PruneConfig(**config)
    return prune_model(whole, asked, ChannelScore(asked), images())[0]


@pytest.mark.parametrize("kind", FAMILIES)
def test_what_is_left_is_built_again_to_the_bit(kind, tmp_path):
    whole = student(kind)
    small = pruned(whole, parts=list(PrunePart), blocks=1)
    before, after = cost_of(whole.backbone, 64), cost_of(small.backbone, 64)
    assert after.params < 0.5 * before.params and after.macs < 0.5 * before.macs
    save_one_file(small, tmp_path / "small.safetensors", {})
    again = load_student(tmp_path / "small.safetensors")
    with torch.no_grad():
        said, anew = small(images()), again(images())
        assert torch.equal(said.summary, anew.summary) and torch.equal(said.spatial, anew.spatial)
        heads = small.head("clip", said), again.head("clip", anew)
    assert heads[0].summary.shape == (2, 12) and heads[0].spatial.shape[-1] == 10
    assert torch.equal(heads[0].spatial, heads[1].spatial)


@pytest.mark.parametrize("kind", ["radio_vit_tiny_patch16", "resnet18", "mobilenetv2_050"])
def test_channels_that_say_nothing_go_first_and_change_nothing(kind):
    """A quarter of each hidden layer and one head are silenced: without them the output is as it was."""
    whole = student(kind)
    asked = PruneConfig(amount=0.25, granularity=1)
    groups = list(groups_of(whole, trace(whole), asked, ChannelScore(asked)))
    with torch.no_grad():
        for group in groups:
            silent = range(0, group.units, 4) if group.part is PrunePart.hidden else [1]
            indices = [unit * group.size + i for unit in silent for i in range(group.size)]
            for dep, found in group.members:
                layer = dep.target.module
                if isinstance(layer, nn.Linear | nn.Conv2d) and "in_channels" in dep.handler.__name__:
                    columns = [found[i] for i in indices]
                    if layer.weight.shape[1] == len(found):
                        layer.weight[:, columns] = 0
            for dep, found in group.members:
                layer = dep.target.module
                if "out_channels" in dep.handler.__name__ and getattr(layer, "weight", None) is not None:
                    rows = [found[i] for i in indices] if len(found) == group.units * group.size else []
                    layer.weight[rows] = 0
    said = whole(images())
    left = pruned(whole, amount=0.25, granularity=1)(images())
    assert torch.allclose(left.summary, said.summary, atol=1e-5)
    assert torch.allclose(left.spatial, said.spatial, atol=1e-5)


def test_a_pruned_student_is_pruned_again():
    once = pruned(student("radio_vit_tiny_patch16"), blocks=1, parts=list(PrunePart), amount=0.25)
    twice = pruned(once, blocks=1, parts=list(PrunePart), amount=0.25)
    assert len(twice.backbone.blocks) == 1 and len(twice.architecture.pruned.kept["blocks"]) == 1
    assert twice.backbone.spatial_dim < once.backbone.spatial_dim < 64
    again = Student(StudentArchitecture.from_json(twice.architecture.to_json())).eval()
    again.load_state_dict(twice.state_dict())
    assert torch.equal(again(images()).summary, twice(images()).summary)


@pytest.mark.parametrize("kind", ["radio_vit_tiny_patch16", "resnet18"])
def test_another_of_its_form_loses_the_same(kind):
    """Of a student whose weights number their places, the same places stay."""
    whole, asked = student(kind), PruneConfig(parts=list(PrunePart), blocks=1, amount=0.3, granularity=1)
    small, cuts = prune_model(whole, asked, ChannelScore(asked), images())
    twin = student(kind, seed=1)
    twin.load_state_dict({k: v + 7 if v.is_floating_point() else v for k, v in whole.state_dict().items()})
    alike = prune_alike(twin, asked, cuts)
    for name, tensor in small.state_dict().items():
        other = alike.state_dict()[name]
        assert torch.allclose(other, tensor + 7 if tensor.is_floating_point() else tensor, atol=1e-5)
    assert alike.architecture == small.architecture


def test_rounds_end_where_one_cut_does():
    """Of four heads and 256 units no round's share is a whole number; a block that goes renumbers the others."""
    whole = student("radio_vit_tiny_patch16")
    once = pruned(whole, amount=0.5, blocks=1)
    small, sizes = whole, {}
    for number in range(1, 5):
        before, after = (removed_share(n, 4, PruneSchedule.geometric, 0.5) for n in (number - 1, number))
        asked = PruneConfig(amount=share_of_rest(before, after), blocks=int(number == 2))
        aim = Aim(sizes, after) if number > 1 else None
        small, cuts = prune_model(small, asked, ChannelScore(asked), images(), aim)
        sizes = sizes or cuts.sizes
    assert [b.attn.num_heads for b in small.backbone.blocks] == [2, 2]
    shapes = [{name: tensor.shape for name, tensor in s.state_dict().items()} for s in (once, small)]
    assert shapes[0] == shapes[1]


def test_held_zeros_follow_the_blocks():
    sparse, _ = sparsify(student("radio_vit_tiny_patch16"), SparsityConfig(SparsityPattern.unstructured))
    small = pruned(sparse, parts=[], blocks=1)
    layers = small.architecture.sparsity.layers
    assert len(layers) == len(sparse.architecture.sparsity.layers) - 4
    for name in layers:
        assert 0.45 < (small.backbone.get_submodule(name).weight == 0).float().mean() < 0.55
    fours, _ = sparsify(student("radio_vit_tiny_patch16"), SparsityConfig(SparsityPattern.two_of_four))
    with pytest.raises(SpecError, match="prune.checkpoint: removing channels breaks the student's 2:4 sparsity"):
        pruned(fours)


def test_it_trains_on():
    small = pruned(student("radio_vit_tiny_patch16"), parts=list(PrunePart))
    small.train()
    small(images()).summary.square().sum().backward()
    assert all(p.grad is not None for n, p in small.named_parameters() if n.startswith("backbone.blocks"))


@pytest.mark.parametrize("score", [PruneScore.taylor, PruneScore.hessian])
def test_scores_with_gradients_are_their_closed_form(score):
    """Of one hidden layer: the sums over each unit's incoming and outgoing weights."""
    whole = student("radio_vit_tiny_patch16")
    asked = PruneConfig(score=score, parts=[PrunePart.hidden])
    counted, squares, total = ChannelScore(asked), {}, {}
    for seed in (1, 2):
        if score is PruneScore.hessian:
            whole.zero_grad()
        whole(images(seed)).summary.square().mean().backward()
        fc1, fc2 = whole.backbone.blocks[0].mlp.fc1, whole.backbone.blocks[0].mlp.fc2
        for layer in (fc1, fc2):
            squares[layer] = squares.get(layer, 0) + layer.weight.grad.square() / 2
            total[layer] = layer.weight.grad.clone()
        counted.add_gradients(whole)
    group = next(g for g in groups_of(whole, trace(whole), asked, counted) if g.layer == "blocks.0.mlp.fc1")

    def each(layer: nn.Linear, along: int) -> torch.Tensor:
        """What a unit's weights in ``layer`` are worth."""
        if score is PruneScore.hessian:
            return (layer.weight.square() * squares[layer]).sum(along)
        return (layer.weight * total[layer]).abs().sum(along)

    expected = (each(fc1, 1) + each(fc2, 0)) / 2
    assert torch.allclose(group.scores, expected.detach(), rtol=1e-4, atol=1e-12)


def test_gradients_are_asked_for():
    asked = PruneConfig(score=PruneScore.taylor)
    with pytest.raises(RuntimeError, match="needs gradients"):
        prune_model(student("radio_vit_tiny_patch16"), asked, ChannelScore(asked), None)


def test_layers_and_parts_that_are_left_alone():
    whole = student("radio_vit_tiny_patch16")
    small = pruned(whole, exclude=["blocks.0.*"])
    assert small.backbone.blocks[0].mlp.fc1.out_features == 256 and small.backbone.blocks[1].mlp.fc1.out_features == 128
    assert [b.attn.num_heads for b in small.backbone.blocks] == [4, 2, 2]
    only = pruned(whole, parts=[PrunePart.heads])
    assert only.backbone.blocks[0].mlp.fc1.out_features == 256 and only.backbone.blocks[0].attn.num_heads == 2
    with pytest.raises(SpecError, match=r"prune.exclude\[0\].*'nothing\*'"):
        pruned(whole, exclude=["nothing*"])
    with pytest.raises(SpecError, match="prune.parts"):
        pruned(whole, exclude=["*"])


def test_more_blocks_than_there_are():
    with pytest.raises(SpecError, match="prune.blocks.*works without 2"):
        pruned(student("radio_vit_tiny_patch16"), blocks=3)


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        ("swin_tiny_patch4_window7_224", ["width"]),
        ("eva02_tiny_patch14_224", ["width"]),
        ("fastvit_t8", ["hidden", "width"]),
    ],
)
def test_a_family_that_cannot_be_pruned_says_so_before_there_are_weights(kind, parts):
    asked = PruneConfig(parts=[PrunePart(part) for part in parts], score=PruneScore.taylor)
    with pytest.raises(SpecError, match=f"model.backbone.type: {kind} cannot be pruned .* ViT, ResNet, ConvNeXt"):
        dry_run(StudentArchitecture(kind, {}, img_size=224), asked)


def test_the_width_that_a_teacher_is_compared_with_as_it_is_stays():
    head = HeadArchitecture("a", 64, 64, raw_kinds=("summary", "spatial"), identity=True)
    form = dataclasses.replace(student("radio_vit_tiny_patch16").architecture, heads=(head,))
    dry_run(form, PruneConfig(parts=[PrunePart.hidden]))
    with pytest.raises(SpecError, match="prune.parts: the width cannot be pruned"):
        dry_run(form, PruneConfig(parts=[PrunePart.width]))


def test_a_rehearsal_of_what_can_be_pruned_draws_nothing():
    form = student("radio_vit_tiny_patch16").architecture
    state = torch.get_rng_state()
    dry_run(form, PruneConfig(blocks=1))
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(SpecError, match="prune.blocks: 3 blocks cannot be removed"):
        dry_run(form, PruneConfig(blocks=3))


@settings(max_examples=50, deadline=None)
@given(
    units=st.integers(1, 200),
    amount=st.floats(0, 1),
    granularity=st.sampled_from([1, 8, 16]),
    mode=st.sampled_from(list(PruneMode)),
    scope=st.sampled_from(list(PruneScope)),
    seed=st.integers(0, 99),
)
def test_how_many_stay(units, amount, granularity, mode, scope, seed):
    whole = student("radio_vit_tiny_patch16")
    asked = PruneConfig(amount=amount, granularity=granularity, mode=mode, threshold=amount, scope=scope)
    group = next(groups_of(whole, trace(whole), asked, ChannelScore(asked)))
    worth = torch.rand(units, generator=torch.Generator().manual_seed(seed))
    for part in (PrunePart.hidden, PrunePart.heads):
        [going] = units_to_remove([dataclasses.replace(group, part=part, units=units, scores=worth)], asked)
        step = min(granularity, units) if part is PrunePart.hidden else 1
        stay = units - len(going)
        assert stay >= step and (stay % step == 0 or not going)
        if going:
            assert worth[going].max() <= worth[[i for i in range(units) if i not in going]].min()
