"""LAMB against timm's, against the paper's formula, and in pieces."""

from __future__ import annotations

import copy
import math

import pytest
import timm.optim
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from radioplat.optim.lamb import Lamb, Layout


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.Linear(7, 3)).double()


def train(module: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 20) -> None:
    for step in range(steps):
        x = torch.randn(4, 5, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        optimizer.zero_grad()
        (module(x) - x[:, :3].sin()).square().mean().backward()
        optimizer.step()


def groups(module: nn.Module, decay: float) -> list[dict]:
    weights = [p for p in module.parameters() if p.ndim > 1]
    biases = [p for p in module.parameters() if p.ndim == 1]
    return [
        {"params": weights, "weight_decay": decay, "adapt": True},
        {"params": biases, "weight_decay": 0.0, "adapt": False},
    ]


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.5, 0.9)])
def test_timms_numbers(betas):
    ours, theirs = model(), model()
    train(ours, Lamb(groups(ours, 0.02), lr=0.05, betas=betas))
    reference = timm.optim.Lamb(
        [{k: v for k, v in group.items() if k != "adapt"} for group in groups(theirs, 0.02)],
        lr=0.05,
        betas=betas,
        max_grad_norm=None,
    )
    train(theirs, reference)
    start = model()
    for a, b, c in zip(ours.parameters(), theirs.parameters(), start.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
        assert not torch.allclose(a, c)


def test_the_first_step_in_closed_form():
    """Bias correction makes the first direction the sign of the gradient; its norm then is sqrt(n)."""
    weight = nn.Parameter(torch.tensor([[3.0, -4.0]], dtype=torch.float64))
    weight.grad = torch.tensor([[0.1, -20.0]], dtype=torch.float64)
    Lamb([weight], lr=0.5, eps=0.0).step()
    moved = 0.5 * 5 / math.sqrt(2)
    expected = torch.tensor([[3 - moved, -4 + moved]], dtype=torch.float64)
    torch.testing.assert_close(weight.detach(), expected)


def test_without_adaptation_it_is_adamw():
    ours, theirs = model(), model()
    train(ours, Lamb([{"params": ours.parameters(), "adapt": False}], lr=0.01, eps=1e-8))
    train(theirs, torch.optim.AdamW(theirs.parameters(), lr=0.01, weight_decay=0.0))
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("which", ["weight", "gradient"])
def test_a_norm_of_zero_gives_a_ratio_of_one(which):
    value, slope = (0.0, 2.0) if which == "weight" else (2.0, 0.0)
    weight = nn.Parameter(torch.full((2, 2), value))
    weight.grad = torch.full((2, 2), slope)
    Lamb([weight], lr=0.5, eps=0.0 if slope else 1e-6).step()
    assert torch.equal(weight.detach(), torch.full((2, 2), value - (0.5 if slope else 0.0)))


def test_a_parameter_without_a_gradient_rests():
    module = model()
    before = copy.deepcopy(module.state_dict())
    optimizer = Lamb(module.parameters(), lr=1.0)
    module[0](torch.ones(1, 5, dtype=torch.float64)).sum().backward()
    optimizer.step()
    assert torch.equal(module[2].weight, before["2.weight"]) and not torch.equal(module[0].weight, before["0.weight"])


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(0, 3), st.floats(0, 0.3))
def test_a_flat_tensor_with_a_layout_is_its_parameters(sizes, padding, decay):
    """Padding between and behind the pieces holds anything, and stays as it is."""
    generator = torch.Generator().manual_seed(sum(sizes))
    pieces, start = [], padding
    for i, size in enumerate(sizes):
        pieces.append((i, start, size))
        start += size + padding
    flat = nn.Parameter(torch.randn(start, generator=generator))
    whole = [nn.Parameter(flat.detach().narrow(0, at, size).clone()) for _, at, size in pieces]
    together, apart = Lamb([flat], lr=0.1, weight_decay=decay), Lamb(whole, lr=0.1, weight_decay=decay)
    together.layouts = {flat: Layout(len(sizes), tuple(pieces))}
    gaps = torch.ones(start, dtype=torch.bool)
    for _, at, size in pieces:
        gaps[at : at + size] = False
    before = flat.detach()[gaps].clone()
    for _ in range(3):
        flat.grad = torch.randn(start, generator=generator)
        for parameter, (_, at, size) in zip(whole, pieces, strict=True):
            parameter.grad = flat.grad.narrow(0, at, size).clone()
        together.step()
        apart.step()
    for parameter, (_, at, size) in zip(whole, pieces, strict=True):
        torch.testing.assert_close(flat.detach().narrow(0, at, size), parameter.detach())
    assert torch.equal(flat.detach()[gaps], before)
