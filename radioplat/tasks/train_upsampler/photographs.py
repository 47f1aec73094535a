"""Images for training and evaluating an upsampler."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from radioplat.common.cpu_threads import decode_threads
from radioplat.data.index.build import build_index
from radioplat.data.loading.reader import MicroBatchReader
from radioplat.data.loading.run_data import RunData
from radioplat.data.loading.split_images import Images
from radioplat.data.views.render import ViewSpec
from radioplat.errors import DataError
from radioplat.spec.schema.dataset import SplitConfig
from radioplat.spec.schema.root import Spec


@dataclass(frozen=True)
class Photographs:
    """Images of one size, for training and evaluation.

    Attributes:
        training, held_out: disjoint if both come from one split.
        seed: for the order of training images.
    """

    training: Images
    held_out: Images
    size: int
    seed: int

    def steps(self, count: int, batch_size: int) -> Iterator[torch.Tensor]:
        """Yield ``count`` training batches, uint8 ``[B, 3, size, size]``, in passes of seeded order.

        Raises:
            DataError: no image of a batch can be decoded.
        """
        rows, wanted = self.training.rows, count * batch_size
        passes = [
            np.random.default_rng([self.seed, n]).permutation(rows) for n in range(-(-wanted // max(1, len(rows))))
        ]
        order = np.concatenate(passes)[:wanted]
        yield from self._pixels(Images(order, self.training.reader, batch_size, self.training.threads))

    def held_out_batches(self, batch_size: int) -> Iterator[torch.Tensor]:
        """Yield the held-out images, uint8 ``[B, 3, size, size]``."""
        yield from self._pixels(Images(self.held_out.rows, self.held_out.reader, batch_size, self.held_out.threads))

    def _pixels(self, images: Images) -> Iterator[torch.Tensor]:
        for batch in images.batches():
            decoded = batch.weight > 0
            if not decoded.any():
                raise DataError(
                    f"none of {len(decoded)} images can be decoded", where="dataset", hint=_first(batch.faults)
                )
            yield torch.from_numpy(np.ascontiguousarray(batch.views[str(self.size)].pixels[decoded]))


def open_photographs(spec: Spec, size: int, held_out: int, seed: int) -> Photographs:
    """Open training images, and up to ``held_out`` others: of ``dataset.val_dataset``, or else excluded from training.

    Raises:
        DataError: a split cannot be read, or has too few images.
    """
    dataset = spec.dataset
    rows, reader = _open(spec, "train", dataset.train_dataset, size)
    if dataset.val_dataset.tar_data_sources or dataset.val_dataset.images_dir:
        held_out_rows, held_out_reader = _open(spec, "val", dataset.val_dataset, size)
        held_out_rows = _some(held_out_rows, held_out, seed)
    else:
        held_out_rows, held_out_reader = _some(rows, min(held_out, len(rows) // 4), seed), reader
        rows = np.setdiff1d(rows, held_out_rows)
    for chosen, name in ((rows, "train_dataset"), (held_out_rows, "val_dataset")):
        if not len(chosen):
            raise DataError("there are no usable images", where=f"dataset.{name}")
    threads = decode_threads(dataset.workers)
    return Photographs(Images(rows, reader, 1, threads), Images(held_out_rows, held_out_reader, 1, threads), size, seed)


def _open(spec: Spec, name: str, split: SplitConfig, size: int) -> tuple[np.ndarray, MicroBatchReader]:
    dataset = spec.dataset
    index_dir = Path(dataset.index_dir or Path(spec.results_dir) / "index") / name
    index = build_index(split, f"dataset.{name}_dataset", index_dir, max_pixels=dataset.max_pixels)
    reader = MicroBatchReader(
        index,
        None,
        [ViewSpec(str(size), size)],
        None,
        split.seed,
        1,
        dataset.max_pixels,
        storage_timeout_s=dataset.storage_timeout_s,
    )
    return np.asarray(RunData.create(index, split, dataset.max_pixels).kept()), reader


def _some(rows: np.ndarray, count: int, seed: int) -> np.ndarray:
    return np.sort(np.random.default_rng(seed).choice(rows, min(count, len(rows)), replace=False))


def _first(faults: dict[int, str]) -> str:
    return f"The first: {next(iter(faults.values()))}." if faults else ""
