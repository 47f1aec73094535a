"""Which sizes the views of a micro-batch have, before it is read: what it costs depends on them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from radioplat.data.order.keyed_random import uniforms
from radioplat.data.order.micro_batch_schedule import Kind
from radioplat.data.views.equivariance import drawn_size
from radioplat.data.views.render import ViewSpec


def kinds(views: Sequence[ViewSpec], seed: int, first: int, last: int) -> list[Kind]:
    """Return the pixels a side of each view in the micro-batches ``first`` to ``last``; 0 where a view is left out.

    Args:
        seed: of the run's draws.
    """
    columns = [_sizes(view, seed, first, last) for view in views]
    return [tuple(sizes) for sizes in zip(*columns, strict=True)]


def _sizes(view: ViewSpec, seed: int, first: int, last: int) -> list[int]:
    """Return what :func:`drawn_size` returns for each micro-batch, with one call of the generator."""
    if view.plan:
        return [drawn_size(view, seed, number) for number in range(first, last)]
    if len(view.sizes) < 2:
        return [drawn_size(view, seed, first)] * (last - first)
    chances = np.cumsum([chance for _, chance in view.sizes])
    draws = uniforms(seed, "resolution", np.arange(first, last), 1)[:, 0] * chances[-1]
    sizes = np.array([size for size, _ in view.sizes])
    return sizes[np.searchsorted(chances, draws, side="right")].tolist()
