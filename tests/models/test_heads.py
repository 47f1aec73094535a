"""Heads against their formulas."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from radioplat.errors import SpecError
from radioplat.models.features import Features
from radioplat.models.heads import MLP2, HeadArchitecture, TeacherHead, shuffle_up


def test_mlp2_without_inner_blocks():
    head, x = MLP2(5, 7, 3), torch.randn(2, 4, 5)
    norm, _, last = head.final
    hidden = F.gelu(F.layer_norm(x @ head.fc1.weight.T + head.fc1.bias, (7,), norm.weight, norm.bias))
    torch.testing.assert_close(head(x), hidden @ last.weight.T + last.bias)


def test_mlp2_inner_blocks_are_residual():
    torch.manual_seed(0)
    head, plain = MLP2(5, 7, 3, num_inner=2), MLP2(5, 7, 3)
    plain.load_state_dict({k: v for k, v in head.state_dict().items() if not k.startswith("blocks.")})
    x = torch.randn(2, 5)
    y = head.fc1(x)
    for norm, _, linear in head.blocks:
        y = y + linear(F.gelu(norm(y)))
    torch.testing.assert_close(head(x), head.final(y))
    with torch.no_grad():
        for block in head.blocks:
            block[2].weight.zero_()
            block[2].bias.zero_()
    torch.testing.assert_close(head(x), plain(x))


def test_only_what_is_wanted_has_a_head():
    head = TeacherHead(HeadArchitecture("a", spatial_dim=4), token_dim=6, spatial_dim=5)
    found = head(Features(torch.randn(2, 6), torch.randn(2, 3, 3, 5)))
    assert found.summary is None and not found.named and found.spatial.shape == (2, 3, 3, 4)
    assert isinstance(head.spatial, torch.nn.Linear)  # hidden 0
    assert {n.split(".")[0] for n, _ in head.named_parameters()} == {"spatial"}


def test_each_teacher_reads_its_own_token():
    tokens = torch.randn(2, 3, 4)
    features = Features(tokens.flatten(1), None, {"tokens": tokens})
    for slot in range(3):
        head = TeacherHead(HeadArchitecture("a", summary_dim=5, logits_dim=7, token_slot=slot), 4, 4)
        found = head(features)
        torch.testing.assert_close(found.summary, head.summary(tokens[:, slot]))
        torch.testing.assert_close(found.named["logits"], head.logits(tokens[:, slot]))
        assert found.spatial is None


def test_an_attention_head_starts_as_its_mlp_and_then_mixes_positions():
    torch.manual_seed(0)
    architecture = HeadArchitecture("a", spatial_dim=4, hidden=8, spatial_version="attn")
    head, x = TeacherHead(architecture, 6, 32), torch.randn(2, 3, 5, 32)
    blocks = head.spatial.blocks
    assert len(blocks) == 2 and all(b.attn.num_heads == 16 for b in blocks)
    assert all((scale.gamma == 1e-5).all() for b in blocks for scale in (b.ls1, b.ls2))
    torch.testing.assert_close(head.spatial(x), head.spatial.mlp(x), rtol=1e-3, atol=1e-3)
    with torch.no_grad():
        for b in blocks:
            b.ls1.gamma.fill_(1.0)
    one = x.clone()
    one[:, 0, 0] = torch.randn(2, 32)
    changed = (head.spatial(one) - head.spatial(x)).abs().amax(-1)
    assert (changed > 1e-4).all()  # every position hears of it
    tokens = x.flatten(1, 2)
    torch.testing.assert_close(head.spatial(x).flatten(1, 2), head.spatial.mlp(blocks[1](blocks[0](tokens))))


def test_a_width_that_sixteen_heads_do_not_divide():
    with pytest.raises(SpecError) as caught:
        TeacherHead(HeadArchitecture("a", spatial_dim=4, spatial_version="attn"), 6, 24, "distill.teacher[2]")
    assert caught.value.problems[0].where == "distill.teacher[2].spatial_mlp_version"


@pytest.mark.parametrize("factor", [1, 2, 3])
def test_pixel_shuffle_is_torchs(factor):
    x = torch.randn(2, 3, 4, factor**2 * 5)
    ours = shuffle_up(x, factor)
    theirs = x.reshape(2, 3, 4, factor**2, 5).permute(0, 4, 3, 1, 2).flatten(1, 2)  # torch: colour first, then offset
    torch.testing.assert_close(ours.permute(0, 3, 1, 2), F.pixel_shuffle(theirs, factor))


@pytest.mark.parametrize("version", ["v2", "attn"])
def test_an_upsampled_head(version):
    architecture = HeadArchitecture("a", spatial_dim=4, hidden=8, spatial_version=version, upsample=2)
    head = TeacherHead(architecture, 6, 32)
    found = head(Features(torch.randn(2, 6), torch.randn(2, 3, 5, 32))).spatial
    assert found.shape == (2, 6, 10, 4) and head.spatial_mean.shape == (4,)


def test_inner_blocks_of_the_map_alone():
    head = TeacherHead(HeadArchitecture("a", 4, 4, hidden=8, num_inner=1, spatial_num_inner=3), 6, 6)
    assert (len(head.summary.blocks), len(head.spatial.blocks)) == (1, 3)
    head = TeacherHead(HeadArchitecture("a", 4, 4, hidden=8, num_inner=1), 6, 6)
    assert (len(head.summary.blocks), len(head.spatial.blocks)) == (1, 1)


@pytest.mark.parametrize("form", ["scalar", "channels", "matrix", "layer"])
def test_without_layers_features_are_the_students_own_and_losses_compare_them_after_the_targets_transform(form):
    architecture = HeadArchitecture(
        "a", 4, 4, summary_norm=form, spatial_norm=form, raw_kinds=("summary", "spatial"), identity=True
    )
    head = TeacherHead(architecture, 4, 4)
    assert not list(head.parameters())
    if form != "layer":
        for kind in ("summary", "spatial"):
            head.set_space(kind, mean=torch.arange(4.0))
    features = Features(torch.randn(2, 4), torch.randn(2, 3, 3, 4), {})
    raw, compared = head(features), head(features, raw=False)
    assert torch.equal(raw.summary, features.summary) and torch.equal(raw.spatial, features.spatial)
    torch.testing.assert_close(compared.summary, head.standardize("summary", features.summary))
    torch.testing.assert_close(compared.spatial, head.standardize("spatial", features.spatial))


def test_without_layers_the_widths_must_be_equal():
    with pytest.raises(SpecError, match=r"the student's is 6, its 4") as error:
        TeacherHead(HeadArchitecture("a", 4, identity=True), 6, 6, "distill.teacher[1]")
    assert error.value.problems[0].where == "distill.teacher[1].use_head"
