"""Build the index of a small corpus, and read a whole index as one table in memory."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from radioplat.data.index.build import build_index
from radioplat.data.index.shard_index import ShardIndex
from radioplat.data.scan.tables import SCAN_SCHEMA
from radioplat.spec.schema.dataset import SplitConfig, TarSource

LIMIT = 178_956_970  # pixels


def samples(index: ShardIndex) -> pa.Table:
    """All columns of ``SCAN_SCHEMA``, the labels, and source and shard of each row."""
    columns = [*SCAN_SCHEMA.names, "label"]
    tables = [table for _, table in index.rows.blocks(columns)] or [index.rows.read(0, 0, columns)]
    table = pa.concat_tables(tables).append_column("shard", pa.array(np.asarray(index.shard)))
    return table.append_column("source", pa.array(np.asarray(index.source))).combine_chunks()


def split(root) -> SplitConfig:
    return SplitConfig(tar_data_sources=[TarSource(str(root / "a")), TarSource(str(root / "b"))])


def build(root, into="index", **kw) -> ShardIndex:
    return build_index(split(root), "dataset.train_dataset", root / into, max_pixels=LIMIT, workers=2, **kw)
