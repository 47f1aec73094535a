"""Layers that are fitted again after pruning: a closed form, and blocks that come nearer to what they gave."""

from __future__ import annotations

import copy

import pytest
import torch

from radioplat.compression.pruning import reconstruct as module
from radioplat.compression.pruning.prune import prune_model
from radioplat.compression.pruning.reconstruct import reconstruct
from radioplat.compression.pruning.scores import ChannelScore
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.spec.schema.prune import PruneConfig, PrunePart

SMALL = {"embed_dim": 48, "depth": 4, "num_heads": 3, "img_size": 64}
KINDS = {
    "vit_tiny_patch16_224": SMALL,
    "vit_small_patch14_dinov2": {**SMALL, "img_size": 56},  # with LayerScale
    "resnet18": {},
    "resnet50": {},
    "convnext_atto": {},
    "tf_efficientnet_lite0": {},
    "mobilenetv3_small_050": {},
}

QUICK = ("vit_tiny_patch16_224", "tf_efficientnet_lite0")  # one with blocks alike, one with BatchNorm


def student(kind: str) -> Student:
    torch.manual_seed(0)
    made = Student(StudentArchitecture(kind, KINDS[kind], img_size=56 if "14" in kind else 64)).eval()
    for name, parameter in made.named_parameters():
        if name.rpartition(".")[2] == "gamma":  # of LayerScale, which begins near zero
            parameter.data.fill_(0.5)
        if name.endswith((".bn2.weight", ".bn3.weight")):  # of ResNets' last BatchNorms, which begin with zero
            parameter.data.fill_(1)
    return made


def images(count: int, seed: int, size: int) -> torch.Tensor:
    """Smooth noise, whose blocks differ more from image to image than white noise's."""
    coarse = torch.rand(count, 3, 5, 5, generator=torch.Generator().manual_seed(seed))
    return (torch.nn.functional.interpolate(coarse, size, mode="bicubic").clamp(0, 1) * 255).to(torch.uint8)


def cut(whole: Student, given: torch.Tensor, **config):
    asked = PruneConfig(**config)
    return prune_model(whole, asked, ChannelScore(asked), given[:8])


def test_what_two_equal_units_gave_is_given_by_the_one_that_stays():
    """The other's outgoing weights are added to its own: an exact solution, which least squares must meet."""
    whole = student("vit_tiny_patch16_224")
    for block in whole.backbone.model.blocks:
        first, second = block.mlp.fc1, block.mlp.fc2
        with torch.no_grad():
            half = len(first.weight) // 2
            first.weight[half:], first.bias[half:] = first.weight[:half], first.bias[:half]
            second.weight[:, half:] *= 0.1  # the second half goes
    given, unseen = images(96, 1, 64), images(16, 2, 64)
    asked = PruneConfig(parts=[PrunePart.hidden], amount=0.5)
    small, cuts = prune_model(whole, asked, ChannelScore(asked), None)
    wanted, before = whole(unseen).summary, small(unseen).summary
    outcomes = reconstruct(whole, small, cuts.kept, given)
    after = small(unseen).summary
    assert all(not one.reason and one.after > 0.999 for one in outcomes) and len(outcomes) == 4
    assert (after - wanted).norm() < 0.05 * (before - wanted).norm()


@pytest.mark.parametrize(
    "kind", [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.proof) for kind in KINDS]
)
def test_removed_blocks_are_made_up_for(kind):
    """On images that were not fitted, too; and only layers that end blocks change."""
    whole = student(kind)
    size = whole.architecture.img_size
    given, unseen = images(160, 1, size), images(32, 2, size)
    small, cuts = cut(whole, given, parts=[], blocks=2)
    state = {name: tensor.clone() for name, tensor in small.state_dict().items()}
    wanted, before = whole(unseen).spatial, small(unseen).spatial
    outcomes = reconstruct(whole, small, cuts.kept, given)
    after = small(unseen).spatial
    assert outcomes and not [one for one in outcomes if one.reason]
    assert all(one.after >= one.before for one in outcomes) and any(
        1 - one.after < 0.9 * (1 - one.before) for one in outcomes
    )
    assert (after - wanted).norm() < 0.9 * (before - wanted).norm()
    changed = [name for name, tensor in small.state_dict().items() if not torch.equal(tensor, state[name])]
    weights = [name for name in changed if small.state_dict()[name].ndim > 1]
    assert 0 < len(weights) <= len(outcomes)


@pytest.mark.parametrize("kind", ["tf_efficientnet_lite0", pytest.param("resnet18", marks=pytest.mark.proof)])
def test_batch_norm_has_the_statistics_of_the_new_outputs(kind):
    """In training mode the layers that were fitted give what they give in evaluation mode."""
    whole = student(kind)
    given = images(160, 1, 64)
    small, cuts = cut(whole, given, parts=[], blocks=2)
    names = {name for name, _ in small.named_modules()}
    before = {name: tensor.clone() for name, tensor in small.state_dict().items()}
    reconstruct(whole, small, cuts.kept, given)
    fitted = [
        name
        for name in names
        if f"{name}.running_var" in before
        and not torch.equal(before[f"{name}.weight"], small.get_submodule(name).weight)
    ]
    assert fitted
    for name in fitted:
        norm, seen = small.get_submodule(name), []
        with norm.register_forward_pre_hook(lambda module, inputs, seen=seen: seen.append(inputs[0])), torch.no_grad():
            small(given)
        mean, variance = seen[0].mean((0, 2, 3)), seen[0].var((0, 2, 3), unbiased=False)
        assert torch.allclose(norm.running_mean, mean, atol=0.1 * float(variance.max().sqrt()))
        assert torch.allclose(norm.running_var, variance, rtol=0.3, atol=0.05 * float(variance.max()))


@pytest.mark.parametrize("kind", [*QUICK, pytest.param("convnext_atto", marks=pytest.mark.proof)])
def test_with_little_memory_the_weights_are_the_same(kind, monkeypatch):
    """Then no outputs are kept: each block is computed from the images, and each one's targets by themselves."""
    whole = student(kind)
    given = images(64, 1, 64)
    small, cuts = cut(whole, given, parts=[], blocks=2)
    other = copy.deepcopy(small)
    kept = reconstruct(whole, small, cuts.kept, given)
    monkeypatch.setattr(module, "_BYTES", 0)
    assert [one.block for one in reconstruct(whole, other, cuts.kept, given)] == [one.block for one in kept]
    for name, tensor in small.state_dict().items():
        assert torch.allclose(tensor, other.state_dict()[name], rtol=1e-3, atol=1e-5), name


def test_blocks_before_the_first_change_are_left_alone():
    whole = student("vit_tiny_patch16_224")
    given = images(32, 1, 64)
    small, cuts = cut(whole, given, parts=[], blocks=1, exclude=["model.blocks.[013]"])
    assert cuts.kept == {"model.blocks": [0, 1, 3]}
    outcomes = reconstruct(whole, small, cuts.kept, given)
    assert [one.block for one in outcomes] == ["model.blocks.1", "model.blocks.2"]


def test_another_width_is_named():
    whole = student("vit_tiny_patch16_224")
    given = images(32, 1, 64)
    asked = PruneConfig(parts=[PrunePart.width], amount=0.3)
    small, cuts = prune_model(whole, asked, ChannelScore(asked), None)
    outcomes = reconstruct(whole, small, cuts.kept, given)
    assert {one.reason for one in outcomes} == {"its output has another shape than before"}
