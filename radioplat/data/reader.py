"""From a span of the order to a batch: read bytes by offset, decode once, cut every view."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from radioplat.data.batch import Batch, View
from radioplat.data.decode import MAX_PIXELS, BadSample, Decoded, decode_rgb
from radioplat.data.fetch import Fetcher
from radioplat.data.shard_index import ShardIndex
from radioplat.data.uniform_color import refuse_uniform_color
from radioplat.data.views import ViewSpec, make_view, needed_size, plan_crop, refuse_unbuilt
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
        read_timeout_s: after how long a grain counts as stalled; for whoever waits for :meth:`read`.
        verify_hashes: an image that is not what its sidecar's hash says is unreadable.
        reject_uniform: an image of one colour gets weight 0.

    Raises:
        SpecError: an augmentation is asked for that is not built.
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
        read_timeout_s: float | None = None,
        verify_hashes: bool = False,
        reject_uniform: bool = False,
    ) -> None:
        if augmentation is not None:
            refuse_unbuilt(augmentation)
        self.index, self.order, self.views = index, order, list(views)
        self.augmentation, self.seed, self.batch_size = augmentation, seed, batch_size
        self.max_pixels, self.read_timeout_s, self.verify_hashes = max_pixels, read_timeout_s, verify_hashes
        self.reject_uniform = reject_uniform
        self._fetch = Fetcher(index, read_timeout_s)

    def careful(self) -> GrainReader:
        """The same reader, which gives up on each sample that storage does not deliver in ``read_timeout_s``."""
        other = copy.copy(self)
        other._fetch = Fetcher(self.index, self.read_timeout_s, careful=True)
        return other

    def read(self, grain: int) -> Batch:
        """The micro-batch at positions ``grain * batch_size`` and on.

        A sample that proves unreadable keeps its place: zeros, weight 0, and its reason in ``faults``.
        """
        if self.order is None:
            raise ValueError("this reader has no order; use read_rows")
        span = self.order.slice(grain * self.batch_size, (grain + 1) * self.batch_size)
        return self._batch(grain, span.sample_id, span.position, self.augmentation)

    def read_rows(self, rows: Sequence[int] | np.ndarray, grain: int = 0) -> Batch:
        """Explicit rows of the index as evaluation views; every position is -1."""
        ids = np.asarray(rows, np.int64)
        return self._batch(grain, ids, np.full(len(ids), -1, np.int64), None)

    def _batch(
        self, grain: int, ids: np.ndarray, positions: np.ndarray, augmentation: AugmentationConfig | None
    ) -> Batch:
        count = len(ids)
        weight = np.ones(count, np.float32)
        faults: dict[int, str] = {}
        views = {
            v.name: View(
                np.zeros((count, 3, v.size, v.size), np.uint8), np.tile(np.eye(3, dtype=np.float32), (count, 1, 1))
            )
            for v in self.views
        }
        for i, (row, position) in enumerate(zip(ids.tolist(), positions.tolist(), strict=True)):
            try:
                self._fill(views, i, row, position, augmentation)
            except BadSample as bad:
                weight[i] = 0
                faults[row] = f"{bad.reason}: {bad.detail}" if bad.detail else bad.reason
        return Batch(grain, views, ids, positions, weight, self.index.label[ids], faults)

    def _fill(
        self, views: dict[str, View], i: int, row: int, position: int, augmentation: AugmentationConfig | None
    ) -> None:
        width, height = int(self.index.width[row]), int(self.index.height[row])
        crop = plan_crop(width, height, augmentation, self.seed, position)
        largest = max(v.size for v in self.views)
        image = self._decode(row, needed_size(width, height, crop.box, largest))
        if (image.width, image.height) != (width, height):
            raise BadSample("size_mismatch", f"indexed as {width}x{height}, decoded {image.width}x{image.height}")
        if self.reject_uniform:
            refuse_uniform_color(image.rgb)
        for view in self.views:
            pixels, homography = make_view(image, crop, view.size)
            views[view.name].pixels[i], views[view.name].homography[i] = pixels, homography

    def _decode(self, row: int, min_size: tuple[int, int]) -> Decoded:
        data = self._fetch.bytes_of(row)
        if self.verify_hashes:
            self._fetch.check_hash(row, data)
        return decode_rgb(data, min_size, self.max_pixels)
