"""Heads against their formulas."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from radioplat.models.features import Features
from radioplat.models.heads import MLP2, HeadArchitecture, TeacherHead


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
