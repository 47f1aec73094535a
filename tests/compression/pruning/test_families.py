"""Families whose attention, gates or groups of channels torch-pruning alone does not follow.

What is removed of them is what was made zero: the smaller student says what the whole one says.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from radioplat.compression.pruning.grouped_convolutions import cut_by_groups
from radioplat.compression.pruning.groups import groups_of, heads_that_stay, trace
from radioplat.compression.pruning.prune import FUSED, prune_model
from radioplat.compression.pruning.scores import ChannelScore
from radioplat.errors import SpecError
from radioplat.models.student.checkpoint import load_student, save_student
from radioplat.spec.schema.prune import PruneConfig, PrunePart
from tests.helpers.drawn_student import drawn_student

# Sides of images, and the size of the smaller student as a share at the most.
FAMILIES = {
    "vit_small_patch16_dinov3": (64, 0.7),
    "eva02_tiny_patch14_224": (224, 0.7),
    "regnety_002": (96, 0.6),
    "resnext26ts": (96, 0.8),
    "swin_tiny_patch4_window7_224": (224, 0.7),
    "tiny_vit_5m_224": (224, 0.7),
    "edgenext_xx_small": (256, 0.7),
    "gcvit_xxtiny": (224, 0.9),
}
# Attention layers with a table for each head, or whose output has the width of their input.
ATTENTIONS = {
    "vit_small_patch16_dinov3": 12,
    "eva02_tiny_patch14_224": 12,
    "swin_tiny_patch4_window7_224": 12,
    "tiny_vit_5m_224": 10,
    "edgenext_xx_small": 3,
    "gcvit_xxtiny": 12,  # those with queries of the whole image can
}
QUICK = ("vit_small_patch16_dinov3", "eva02_tiny_patch14_224", "regnety_002")


def with_zeros(student, config: PruneConfig):
    """Make every second unit of each group zero, in each layer that it runs through."""
    traced = copy.deepcopy(student)  # some backbones keep tensors of a call
    for module in traced.modules():
        if getattr(module, FUSED, False):
            setattr(module, FUSED, False)
    with cut_by_groups(traced):
        fixed = heads_that_stay(traced)
        groups = list(groups_of(traced, trace(traced), config, ChannelScore(config), fixed=fixed))
    names = {module: name for name, module in traced.named_modules()}
    with torch.no_grad():
        for group in groups:
            for dep, idxs in group.members:
                if isinstance(dep.target.module, nn.Module) and list(dep.target.module.parameters(recurse=False)):
                    assert len(idxs) == group.units * group.size, "every member has a channel for each"
                    chosen = [idx for i, idx in enumerate(idxs) if i // group.size % 2]
                    zero(student.get_submodule(names[dep.target.module]), dep.handler.__name__, chosen)
    return student


def zero(module: nn.Module, handler: str, channels: list[int]) -> None:
    if "in_channels" in handler and isinstance(module, nn.Linear | nn.Conv2d):
        module.weight[:, channels] = 0
        return
    module.weight[channels] = 0
    if module.bias is not None:
        module.bias[channels] = 0


def size_of(student) -> int:
    return sum(parameter.numel() for parameter in student.parameters())


@pytest.mark.parametrize("name", ["res2net50_26w_4s", "mambaout_femto"])
def test_blocks_that_split_hidden_channels_are_refused_and_lose_width_or_whole_blocks(name, tmp_path):
    student = drawn_student(name, 96)
    with pytest.raises(SpecError) as error:
        prune_model(student, config := PruneConfig(amount=0.25), ChannelScore(config))
    (problem,) = error.value.problems
    assert problem.where == "prune.parts" and f"{name} cannot lose hidden units: its blocks (" in problem.message
    images = torch.randint(0, 256, (2, 3, 96, 96), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    for number, options in enumerate(({"parts": [PrunePart.width], "amount": 0.25}, {"parts": [], "blocks": 2})):
        small, _ = prune_model(student, config := PruneConfig(**options), ChannelScore(config), images)
        assert size_of(small) < size_of(student)
        (tmp_path / str(number)).mkdir()
        save_student(small, small.state_dict(), tmp_path / str(number))
        with torch.no_grad():
            assert torch.equal(load_student(tmp_path / str(number))(images).spatial, small(images).spatial)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.proof] * (name not in QUICK)) for name in FAMILIES]
)
def test_the_smaller_student_says_what_the_one_with_zeros_said(name, tmp_path):
    size, share = FAMILIES[name]
    config = PruneConfig(amount=0.5, granularity=1)
    whole = with_zeros(drawn_student(name, size), config)
    images = torch.randint(0, 256, (2, 3, size, size), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    small, cuts = prune_model(whole, config, ChannelScore(config))
    assert len(cuts.heads_stay) == ATTENTIONS.get(name, 0)
    assert any(cuts.units) and size_of(small) < share * size_of(whole)
    with torch.no_grad():
        for kind in ("summary", "spatial"):
            wanted, found = (getattr(model(images), kind) for model in (whole, small))
            torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4 * float(wanted.abs().max()))
    save_student(small, small.state_dict(), tmp_path)
    with torch.no_grad():
        assert torch.equal(load_student(tmp_path)(images).spatial, small(images).spatial)
