"""The shards that the tests of streams on Ray read."""

from __future__ import annotations

from pathlib import Path

import pytest

from radioplat.data.index.build import build_index
from radioplat.data.loading.run_data import RunData, dataset_to_json
from radioplat.spec.loading.load import load_spec

SHARDS, PER_SHARD, BATCH = 40, 4, 4  # 16 shards are shuffled together


@pytest.fixture(scope="session")
def write_run_data(write_tar, photo):
    """write_run_data(folder, **fields of the dataset) -> arguments of the reader, and the data of 40 small shards."""
    image = photo(60, 50)

    def write(folder: Path, **fields: float):
        for shard in range(SHARDS):
            write_tar(folder / f"a/{shard:02}.tar", [(f"{shard}_{i}.jpg", image) for i in range(PER_SHARD)])
        sources = {"train_dataset": {"tar_data_sources": [{"root_dir": str(folder / "a")}]}}
        dataset = load_spec({"dataset": sources | {"batch_size": BATCH, **fields}}).dataset
        split = dataset.train_dataset
        data = RunData.create(build_index(split, "d", folder / "i", max_pixels=10**9), split, 10**9)
        data.save(folder / "run")
        return (str(folder / "run"), dataset_to_json(dataset), (("32", 32),)), data

    return write
