"""Attention of each position to the square around it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

_BLOCK = (
    8  # queries are grouped in squares of this side, with the keys around them: memory grows with H * W, not its square
)
_NEVER = -1e9  # finite: a padded query, all of whose keys are masked, must not produce a NaN


class LocalAttention(nn.Module):
    """Sliding-window attention with a learned bias for each offset.

    Args:
        width: channels.
        heads: divides ``width``.
        window: side of the square that a position sees, odd.

    Raises:
        ValueError: ``heads`` does not divide ``width``, or ``window`` is even.
    """

    def __init__(self, width: int, heads: int, window: int) -> None:
        super().__init__()
        if heads < 1 or width % heads:
            raise ValueError(f"{heads} heads do not divide a width of {width}")
        if window < 1 or window % 2 == 0:
            raise ValueError(f"a window has an odd side, not {window}")
        self.heads, self.radius = heads, window // 2
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.bias = nn.Parameter(torch.zeros(heads, window * window))  # offsets row by row

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend from each position of ``[B, H, W, C]`` to the square around it; returns the same shape."""
        (_, height, width, channels), rows, columns = x.shape, -(-x.shape[1] // _BLOCK), -(-x.shape[2] // _BLOCK)
        q, k, v = self.qkv(x).chunk(3, -1)
        attended = F.scaled_dot_product_attention(
            self._blocks(q, 0), self._blocks(k, self.radius), self._blocks(v, self.radius), self._mask(x)
        )  # [B, blocks, heads, queries, C / heads]
        attended = attended.transpose(2, 3).reshape(-1, rows, columns, _BLOCK, _BLOCK, channels)
        whole = attended.transpose(2, 3).reshape(-1, rows * _BLOCK, columns * _BLOCK, channels)
        return self.out(whole[:, :height, :width])

    def _blocks(self, x: torch.Tensor, margin: int) -> torch.Tensor:
        """Cut ``[B, H, W, C]`` into ``[B, blocks, heads, side^2, C / heads]``: squares of ``side = 8 + 2 margin``."""
        below, right = -x.shape[1] % _BLOCK + margin, -x.shape[2] % _BLOCK + margin
        side = _BLOCK + 2 * margin
        squares = F.pad(x, (0, 0, margin, right, margin, below)).unfold(1, side, _BLOCK).unfold(2, side, _BLOCK)
        return squares.flatten(4).unflatten(3, (self.heads, -1)).transpose(-1, -2).flatten(1, 2)

    def _mask(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``[blocks, heads, queries, keys]``: the bias where a key is in the window and in the map."""
        keys = torch.arange(_BLOCK + 2 * self.radius, device=x.device)
        offset = keys - keys[:_BLOCK, None]  # [queries, keys] along one axis, from 0 to twice the radius in the window
        size = 2 * self.radius + 1
        in_window = (offset >= 0) & (offset < size)
        in_window = (in_window[:, None, :, None] & in_window[None, :, None, :]).flatten(2).flatten(0, 1)
        which = (offset[:, None, :, None] * size + offset[None, :, None, :]).flatten(2).flatten(0, 1)
        bias = self.bias[:, which.clamp(0, size * size - 1)]
        ones = x.new_ones(1, *x.shape[1:3], self.heads)
        there = self._blocks(ones, self.radius)[0, :, :1, None, :, 0] > 0  # [blocks, 1, 1, keys]
        return torch.where(in_window & there, bias, _NEVER)
