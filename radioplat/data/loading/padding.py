"""Batches of weight zero, which give all ranks the same number of micro-batches."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from radioplat.data.batch import Batch, View
from radioplat.data.order.micro_batch_schedule import PADDING
from radioplat.data.views.render import ViewSpec


def padding_batch(views: Iterable[ViewSpec], size: int) -> Batch:
    """Return a batch of weight zero with the shapes of a real one; teachers are not called for it."""
    nothing = np.full(size, -1, np.int64)
    return Batch(
        PADDING,
        {
            v.name: View(
                np.zeros((size, 3, v.size, v.size), np.uint8), np.tile(np.eye(3, dtype=np.float32), (size, 1, 1))
            )
            for v in views
        },
        nothing,
        nothing,
        np.zeros(size, np.float32),
        nothing,
    )
