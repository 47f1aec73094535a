"""Linear CKA: similarity of two sets of features of the same images (or positions), invariant to their bases.

Source: Kornblith et al. 2019, "Similarity of Neural Network Representations Revisited", section 3, with an unbiased
estimate of HSIC (Song et al. 2012, "Feature Selection via Dependence Maximization", theorem 5): the biased estimate
tends to 1 for features wider than the number of rows, even unrelated ones; this one is about 0 for unrelated features,
and may be negative. Features that are equal up to a rotation, a scale and a shift score 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

LEAST_ROWS = 4


def linear_cka(a: Tensor, b: Tensor) -> float:
    """Compute debiased linear CKA of ``[n, D]`` and ``[n, E]``, in fp64; 0 if all rows of one of them are equal.

    Raises:
        ValueError: fewer than four rows, or different numbers of rows.
    """
    if len(a) != len(b) or len(a) < LEAST_ROWS:
        raise ValueError(f"as many rows of both are needed, at least {LEAST_ROWS}, not {len(a)} and {len(b)}")
    grams = [_centred(rows.double()) for rows in (a, b)]
    cross, own = (grams[0] * grams[1]).sum(), [gram.square().sum() for gram in grams]
    if not (own[0] > 0 and own[1] > 0):
        return 0.0
    return float(cross / (own[0] * own[1]).sqrt())


def _centred(rows: Tensor) -> Tensor:
    """Return the U-centred Gram matrix ``[n, n]``: zero diagonal, rows and columns that sum to 0.

    The product of two of them, divided by n(n - 3), is Song's estimator (Szekely and Rizzo 2014, section 3); CKA is a
    ratio, in which that factor cancels.
    """
    n = len(rows)
    rows = rows - rows.mean(0)  # reduces rounding; the result does not depend on the mean
    size = rows.square().mean()
    gram = rows @ rows.T
    gram = gram.fill_diagonal_(0)
    sums = gram.sum(0)
    gram = gram - sums[:, None] / (n - 2) - sums[None] / (n - 2) + sums.sum() / ((n - 1) * (n - 2))
    gram.fill_diagonal_(0)
    # If all rows are equal, return exact zeros, not rounding noise.
    return gram if float(size) > 1e-24 else torch.zeros_like(gram)


class RowSample:
    """Collects rows of two sets of features for :func:`linear_cka`, spread evenly over images and their positions.

    Args:
        rows: maximum number of rows.
        images: number of images that will be added; of more images than rows some are left out, otherwise several
            positions of each are kept.
    """

    def __init__(self, rows: int, images: int) -> None:
        self._rows, self._images = rows, max(1, images)
        self._count = 0
        self._kept: list[tuple[Tensor, Tensor]] = []

    def add(self, a: Tensor, b: Tensor) -> None:
        """Add features of a batch: ``[B, D]`` and ``[B, E]``, or maps ``[B, h, w, D]`` and ``[B, h, w, E]``."""
        a, b = (x.detach().reshape(len(x), -1, x.shape[-1]) for x in (a, b))
        each = min(a.shape[1], max(1, self._rows // self._images))
        for i in range(len(a)):
            ordinal = self._count + i
            # Keep the images at which floor(ordinal * rows / images) increases.
            if ordinal * self._rows // self._images == (ordinal - 1) * self._rows // self._images:
                continue
            # Multiples of the golden ratio are evenly spread and do not align with columns of the grid.
            place = (torch.arange(each, dtype=torch.float64) + ordinal * each) * 0.6180339887498949 % 1.0
            chosen = (place * a.shape[1]).long().unique().to(a.device)
            self._kept.append((a[i, chosen].float().cpu(), b[i, chosen].float().cpu()))
        self._count += len(a)

    def cka(self) -> float | None:
        """Return CKA of the collected rows; None if there are fewer than four."""
        if sum(len(a) for a, _ in self._kept) < LEAST_ROWS:
            return None
        a, b = (torch.cat(parts) for parts in zip(*self._kept, strict=True))
        return linear_cka(a, b)
