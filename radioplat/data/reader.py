"""From a span of the order to a batch: read bytes by offset, decode once, cut every view."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from radioplat.data.batch import Batch
from radioplat.data.decode import MAX_PIXELS, BadSample, Decoded, decode_rgb
from radioplat.data.files import HandlePool
from radioplat.data.recipe import Equivariance, Recipe
from radioplat.data.shard_index import ShardIndex, gone
from radioplat.data.views import ViewSpec
from radioplat.spec.dataset import AugmentationConfig


class Span(Protocol):
    """A piece of the order: int64 ``position`` and ``sample_id``, each ``[stop - start]``."""

    position: np.ndarray
    sample_id: np.ndarray


class Order(Protocol):
    """Whatever says which row of the index stands at which position."""

    def slice(self, start: int, stop: int) -> Span:
        """The span from ``start`` to ``stop`` (exclusive)."""
        ...


class GrainReader:
    """Reads grains; thread-safe, and pickles without its open files.

    Args:
        index: the run's copy.
        order: None if only :meth:`read_rows` is used.
        views: every view to cut from each image.
        augmentation: None gives evaluation views (the centred square).
        seed: of the run; crops depend on it and on the position, on nothing else.
        batch_size: samples of a grain.
        max_pixels: a larger image is not decoded.
        equivariance: how the views of one image lie to each other.
    """

    def __init__(
        self,
        index: ShardIndex,
        order: Order | None,
        views: Sequence[ViewSpec],
        augmentation: AugmentationConfig | None,
        seed: int,
        batch_size: int,
        max_pixels: int = MAX_PIXELS,
        equivariance: Equivariance = Equivariance.none,
    ) -> None:
        self.index, self.order, self.views = index, order, list(views)
        self.batch_size, self.max_pixels = batch_size, max_pixels
        self.recipe = Recipe(self.views, augmentation, seed, equivariance)
        self._still = Recipe(self.views, None, seed)
        self._files = HandlePool()

    def read(self, grain: int) -> Batch:
        """The micro-batch at positions ``grain * batch_size`` and on.

        A sample that proves unreadable keeps its place: zeros, weight 0, and its reason in ``faults``.

        Raises:
            DataError: a shard changed since it was indexed, or is gone.
        """
        if self.order is None:
            raise ValueError("this reader has no order; use read_rows")
        span = self.order.slice(grain * self.batch_size, (grain + 1) * self.batch_size)
        return self._batch(grain, span.sample_id, span.position, self.recipe)

    def read_rows(self, rows: Sequence[int] | np.ndarray, grain: int = 0) -> Batch:
        """Explicit rows of the index as evaluation views; every position is -1.

        Raises:
            DataError: as :meth:`read`.
        """
        ids = np.asarray(rows, np.int64)
        return self._batch(grain, ids, np.full(len(ids), -1, np.int64), self._still)

    def _batch(self, grain: int, ids: np.ndarray, positions: np.ndarray, recipe: Recipe) -> Batch:
        sizes = self.index.width[ids], self.index.height[ids]
        plan = recipe.plan(grain, *sizes, positions)
        weight = np.ones(len(ids), np.float32)
        faults: dict[int, str] = {}
        for i, row in enumerate(ids.tolist()):
            try:
                image = self._decode(row, plan.reduction(i), fast=recipe is self.recipe)
                if (image.width, image.height) != (sizes[0][i], sizes[1][i]):
                    detail = f"indexed as {sizes[0][i]}x{sizes[1][i]}, decoded {image.width}x{image.height}"
                    raise BadSample("size_mismatch", detail)
                plan.fill(i, image)
            except BadSample as bad:
                weight[i] = 0
                faults[row] = f"{bad.reason}: {bad.detail}" if bad.detail else bad.reason
        return Batch(grain, plan.views(), ids, positions, weight, self.index.label[ids], faults)

    def _decode(self, row: int, reduction: float, fast: bool) -> Decoded:
        shard = int(self.index.shard[row])
        path = self.index.shard_paths[shard]
        length = int(self.index.length[row])
        try:
            handle = self._files.get(path, lambda opened: self.index.check_shard(shard, opened.state))
        except OSError as error:
            raise gone(path, error) from None
        try:
            data = handle.read(int(self.index.offset[row]), length)
        except OSError as error:
            raise BadSample("short_read", error.strerror or str(error)) from None
        if len(data) != length:
            raise BadSample("short_read", f"{len(data)} of {length} bytes")
        return decode_rgb(data, reduction, self.max_pixels, fast)
