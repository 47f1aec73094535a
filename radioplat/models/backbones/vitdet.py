"""ViTDet windows: while a student trains, most blocks attend inside windows of the map (Li et al. 2022, section 3).

The paper does not specify how tokens outside the map (class tokens and registers) are treated. Here each window gets a
copy of them at the start of a sequence of windowed blocks, so that attention inside a window equals attention on a
small image; at its end the copies are averaged, which is exact if the windows agree and symmetric if they do not. A
global block then has one copy of each again, as in evaluation, where there are no windows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

SIZES = tuple(range(6, 33))  # default sides in patches (spec_fields, section 7)
NUM_GLOBAL = 4


@dataclass(frozen=True)
class Windows:
    """Probability and sizes of windows.

    Attributes:
        prob: probability that a micro-batch is computed in windows.
        sizes: sides in patches to draw from, with equal probability among those that fit the micro-batch's map.
        global_layers: indices of the blocks that always attend to the complete map; they include the last block.
    """

    prob: float
    sizes: tuple[int, ...]
    global_layers: frozenset[int]

    def fitting(self, rows: int, columns: int) -> list[int]:
        """Return the sizes that cut a map of ``rows x columns`` patches into two or more windows without remainder."""
        fits = (s for s in self.sizes if not (rows % s or columns % s) and s < max(rows, columns))
        return sorted(set(fits))

    @torch.compiler.disable  # not traced; a graph is compiled for each size that it returns
    def draw(self, rows: int, columns: int) -> int:
        """Draw the size for one micro-batch; 0 for none. Always consumes two numbers of torch's CPU generator."""
        chance, which = torch.rand(2, device="cpu").tolist()
        fits = self.fitting(rows, columns)
        return fits[int(which * len(fits))] if fits and chance < self.prob else 0


def global_layers(depth: int, num_global: int | None = None, num_windowed: int | None = None) -> frozenset[int]:
    """Return the indices of the blocks that attend globally: every ``period``-th, and the last.

    The period is that of TAO and NVlabs/RADIO. If it does not divide the depth, there are more than ``num_global``.

    Args:
        depth: number of blocks of the ViT.
        num_global: sets the period ``depth // num_global``; default 4, or half of the blocks if there are fewer than 8.
        num_windowed: instead, how many windowed blocks come before each global one.
    """
    count = num_global or min(NUM_GLOBAL, max(depth // 2, 1))
    period = max(depth // count, 1) if num_windowed is None else num_windowed + 1
    return frozenset(range(period - 1, depth, period)) | {depth - 1}


def design_windows(
    prob: float, sizes: Iterable[int], depth: int, num_global: int | None, num_windowed: int | None
) -> Windows:
    """Return the windows that ``distill.vitdet`` configures."""
    return Windows(prob, tuple(sizes) or SIZES, global_layers(depth, num_global, num_windowed))


def to_windows(tokens: torch.Tensor, prefix: int, rows: int, columns: int, size: int) -> torch.Tensor:
    """Cut ``[B, prefix + rows * columns, D]`` into windows ``[B * n, prefix + size**2, D]``, row by row of the map."""
    b, _, d = tokens.shape
    n = rows // size * (columns // size)
    patches = tokens[:, prefix:].reshape(b, rows // size, size, columns // size, size, d)
    patches = patches.permute(0, 1, 3, 2, 4, 5).reshape(b * n, size * size, d)
    copies = tokens[:, None, :prefix].expand(b, n, prefix, d).reshape(b * n, prefix, d)
    return torch.cat([copies, patches], dim=1)


def from_windows(windows: torch.Tensor, prefix: int, rows: int, columns: int, size: int) -> torch.Tensor:
    """Inverse of :func:`to_windows`; the windows' copies of the prefix are averaged."""
    n, d = rows // size * (columns // size), windows.shape[-1]
    b = windows.shape[0] // n
    patches = windows[:, prefix:].reshape(b, rows // size, columns // size, size, size, d)
    patches = patches.permute(0, 1, 3, 2, 4, 5).reshape(b, rows * columns, d)
    return torch.cat([windows[:, :prefix].reshape(b, n, prefix, d).mean(1), patches], dim=1)
