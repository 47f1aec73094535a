"""Attention in blocks is attention of every position to its window, and to nothing else."""

from __future__ import annotations

import pytest
import torch

from radioplat.teachers.upsamplers.featsharp.local_attention import LocalAttention


def attended(layer: LocalAttention, x: torch.Tensor) -> torch.Tensor:
    """The same by one big matrix."""
    batch, height, width, channels = x.shape
    y, column = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    dy, dx = (p.flatten()[None] - p.flatten()[:, None] for p in (y, column))  # [query, key]
    seen = (dy.abs() <= layer.radius) & (dx.abs() <= layer.radius)
    which = (dy + layer.radius) * (2 * layer.radius + 1) + dx + layer.radius
    bias = layer.bias[:, which.clamp(0, layer.bias.shape[1] - 1)].masked_fill(~seen, -torch.inf)
    q, k, v = layer.qkv(x).flatten(1, 2).unflatten(2, (3, layer.heads, -1)).permute(2, 0, 3, 1, 4)
    share = (q @ k.mT / q.shape[-1] ** 0.5 + bias).softmax(-1)
    return layer.out((share @ v).transpose(1, 2).reshape(batch, height, width, channels))


@pytest.mark.parametrize("grid", [(1, 1), (3, 3), (8, 8), (9, 17), (16, 4)])
@pytest.mark.parametrize("window", [1, 3, 7])
def test_as_full_attention_with_a_mask(grid, window):
    torch.manual_seed(0)
    layer = LocalAttention(12, 3, window)
    torch.nn.init.normal_(layer.bias)
    x = torch.randn(2, *grid, 12, requires_grad=True)
    out, expected = layer(x), attended(layer, x)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    probe = torch.randn_like(out)
    ours, theirs = (torch.autograd.grad((o * probe).sum(), (x, layer.bias)) for o in (out, expected))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("heads", "window", "message"), [(5, 3, "divide"), (0, 3, "divide"), (3, 4, "odd")])
def test_refused(heads, window, message):
    with pytest.raises(ValueError, match=message):
        LocalAttention(12, heads, window)
