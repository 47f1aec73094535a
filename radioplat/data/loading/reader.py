"""Read micro-batches: fetch the samples' bytes, decode each image once, cut all views."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from radioplat.data.batch import Batch
from radioplat.data.detection.box_table import BoxTable
from radioplat.data.detection.boxes import Boxes
from radioplat.data.images.decode import MAX_PIXELS, BadSample, Decoded, decode_rgb
from radioplat.data.images.uniform_color import refuse_uniform_color
from radioplat.data.index.shard_index import ShardIndex
from radioplat.data.loading.fetch import Fetcher, Place
from radioplat.data.order.order import Refs
from radioplat.data.views.render import ViewSpec
from radioplat.data.views.view_plan import Equivariance, Recipe
from radioplat.spec.schema.dataset import AugmentationConfig, DatasetConfig


class Order(Protocol):
    """A sequence of sample ids."""

    def slice(self, start: int, stop: int) -> Refs:
        """Return positions ``start`` to ``stop`` (exclusive)."""
        ...


class MicroBatchReader:
    """Reads micro-batches; thread-safe, and pickled without its open files.

    Args:
        index: the run's copy.
        order: None if only :meth:`read_rows` is used.
        views: the views to cut from each image.
        augmentation: None: evaluation views (centre crops).
        seed: seed of the run; crops depend only on it and the position.
        batch_size: samples per micro-batch.
        max_pixels: larger images are not decoded.
        read_timeout_s: time after which callers of :meth:`read` should treat it as hanging.
        verify_hashes: treat images whose bytes do not match the sidecar's hash as unreadable.
        reject_uniform: give images of a single colour weight 0.
        equivariance: relation between the views of one image.
        boxes: object boxes; views then contain the visible ones, and without random crops show the whole image,
            stretched to the view.
        whole: evaluation views show the whole image, stretched, instead of the centre crop.
        storage_timeout_s: time to wait for failing storage.
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
        equivariance: Equivariance = Equivariance.none,
        boxes: BoxTable | None = None,
        whole: bool = False,
        storage_timeout_s: float = DatasetConfig.storage_timeout_s,
    ) -> None:
        self.index, self.order, self.views = index, order, list(views)
        self.batch_size, self.max_pixels = batch_size, max_pixels
        self.read_timeout_s, self.verify_hashes, self.reject_uniform = read_timeout_s, verify_hashes, reject_uniform
        self.boxes = boxes
        self.recipe = Recipe(self.views, augmentation, seed, equivariance, whole=boxes is not None)
        self._still = Recipe(self.views, None, seed, whole=whole)
        self._fetch = Fetcher(index, read_timeout_s, storage_timeout_s=storage_timeout_s)

    def careful(self) -> MicroBatchReader:
        """Return a copy whose reads never hang: each ends after ``read_timeout_s`` and is retried."""
        other = copy.copy(self)
        other._fetch = self._fetch.as_careful()
        return other

    def read(self, micro_batch: int) -> Batch:
        """Return the micro-batch with positions from ``micro_batch * batch_size`` on.

        An unreadable sample stays in the batch as zeros with weight 0, and its reason in ``faults``.
        """
        if self.order is None:
            raise ValueError("this reader has no order; use read_rows")
        span = self.order.slice(micro_batch * self.batch_size, (micro_batch + 1) * self.batch_size)
        keys = self.recipe.keys(span)
        return self._batch(micro_batch, span.sample_id, span.position, keys, self.recipe, fast=True)

    def read_rows(self, rows: Sequence[int] | np.ndarray) -> Batch:
        """Return rows of the index as evaluation views; every position is -1."""
        ids = np.asarray(rows, np.int64)
        nowhere = np.full(len(ids), -1, np.int64)
        return self._batch(0, ids, nowhere, nowhere, self._still, fast=False)

    def _batch(
        self, micro_batch: int, ids: np.ndarray, positions: np.ndarray, keys: np.ndarray, recipe: Recipe, fast: bool
    ) -> Batch:
        """``fast``: decode with faster, less exact arithmetic, for training."""
        sizes = self.index.width[ids], self.index.height[ids]
        plan = recipe.plan(micro_batch, *sizes, keys)
        weight = np.ones(len(ids), np.float32)
        faults: dict[int, str] = {}
        runs = _runs(ids)
        for members, place in zip(runs, self._fetch.places(ids[[run[0] for run in runs]]), strict=True):
            first, row = members[0], int(ids[members[0]])
            try:
                image = self._decode(row, place, min(map(plan.reduction, members)), fast)
                if (image.width, image.height) != (sizes[0][first], sizes[1][first]):
                    detail = f"indexed as {sizes[0][first]}x{sizes[1][first]}, decoded {image.width}x{image.height}"
                    raise BadSample("size_mismatch", detail)
                if self.reject_uniform:
                    refuse_uniform_color(image.rgb)
                for i in members:
                    plan.fill(i, image)
            except BadSample as bad:
                weight[members] = 0
                faults[row] = f"{bad.reason}: {bad.detail}" if bad.detail else bad.reason
        if self.boxes is not None:
            known = [self.boxes.of(row) if w else Boxes.none() for row, w in zip(ids.tolist(), weight, strict=True)]
            return Batch(micro_batch, plan.views(known), ids, positions, weight, self.index.label[ids], faults)
        return Batch(micro_batch, plan.views(), ids, positions, weight, self.index.label[ids], faults)

    def _decode(self, row: int, place: Place, reduction: float, fast: bool) -> Decoded:
        data = self._fetch.read(place)
        if self.verify_hashes:
            self._fetch.check_hash(row, data)
        return decode_rgb(data, reduction, self.max_pixels, fast)


def _runs(ids: np.ndarray) -> list[list[int]]:
    """Return the places of each image that follow each other; with several views of an image a step, more than one."""
    edges = np.flatnonzero(np.diff(ids)) + 1
    return [run.tolist() for run in np.split(np.arange(len(ids)), edges) if len(run)]
