"""What is in a folder of shards or images, without any spec."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from radioplat.data.filters import reject_reasons
from radioplat.data.index import build_index
from radioplat.data.shard_index import ShardIndex
from radioplat.spec.dataset import DatasetConfig
from radioplat.spec.load import load_spec

SIDES = (0, 64, 128, 224, 384, 512, 768, 1024, 2048)


@dataclass(frozen=True)
class Survey:
    """Figures of one folder.

    Attributes:
        short_sides: images by the lower bound of their bin of the short side, pixels.
        duplicates: images whose hash an earlier one has, among those that carry a hash.
        rejected: images by the filter that rejects them.
        faults: unusable members by reason.
    """

    folder: str
    shards: int
    images: int
    image_bytes: int
    formats: dict[str, int]
    labelled: int
    classes: int
    short_sides: dict[int, int]
    duplicates: int
    rejected: dict[str, int]
    faults: dict[str, int]


def survey(folder: str | Path, overrides: list[str] | None = None) -> Survey:
    """Index ``folder`` (tars below it, or else its images) and sum it up.

    Args:
        overrides: ``native_resolution_filter.min_short_side=224`` and the like, as in ``dataset.train_dataset``, and
            ``index_dir=...``.

    Raises:
        DataError: the folder holds neither shards nor images.
    """
    folder = Path(folder).absolute()
    own = [o for o in overrides or [] if not o.startswith("index_dir=")]
    index_dir = next((o.partition("=")[2] for o in overrides or [] if o.startswith("index_dir=")), None)
    tars = next(folder.rglob("*.tar"), None)
    source = (
        {"tar_data_sources": [{"root_dir": str(folder)}]}
        if tars or not folder.is_dir()
        else {"images_dir": str(folder)}
    )
    dataset: DatasetConfig = load_spec(
        {"dataset": {"train_dataset": source}}, [f"dataset.train_dataset.{o}" for o in own]
    ).dataset
    where = Path(index_dir) if index_dir else Path("results/index") / str(folder).strip("/").replace("/", "_")
    index = build_index(dataset.train_dataset, "index", where, max_pixels=dataset.max_pixels)
    return _sum_up(str(folder), index, reject_reasons(index, dataset.train_dataset, dataset.max_pixels))


def _sum_up(folder: str, index: ShardIndex, reasons: np.ndarray) -> Survey:
    short = np.minimum(index.width, index.height)
    places = np.searchsorted(SIDES, short, side="right") - 1
    hashes = [h for h in index.samples["hash"].to_pylist() if h]
    return Survey(
        folder,
        index.shards.num_rows,
        len(index),
        int(index.length.sum()),
        dict(Counter(index.samples["format"].to_pylist())),
        int((index.label >= 0).sum()),
        len(set(index.label[index.label >= 0].tolist())),
        {SIDES[p]: int((places == p).sum()) for p in sorted(set(places.tolist()))},
        len(hashes) - len(set(hashes)),
        dict(Counter(r for r in reasons.tolist() if r)),
        dict(Counter(index.faults["reason"].to_pylist())),
    )
