"""The scan of shards as a Ray Data job: tars are walked in tasks all over the cluster, results stream back."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Generator

import pyarrow as pa
import ray
import ray.data

from radioplat.data.ray_blocks import read_blocks
from radioplat.data.scan.scan import ScanBatch, ScanResult, scan_batch

BATCHES_PER_TASK = 8


def scan_on_ray(batches: list[ScanBatch], cpus_per_task: float = 1.0) -> Generator[ScanResult, None, None]:
    """Scan on the cluster that this process has joined; results come as they are ready.

    Args:
        cpus_per_task: logical CPUs of each task.
    """
    rows = pa.table({"batch": pa.array([pickle.dumps(batch) for batch in batches], pa.large_binary())})
    dataset = _with_row_blocks(
        lambda: ray.data.from_arrow(rows, override_num_blocks=-(-len(batches) // BATCHES_PER_TASK)).map_batches(
            _scan_rows, batch_size=None, batch_format="pyarrow", zero_copy_batch=True, num_cpus=cpus_per_task
        )
    )
    with contextlib.closing(read_blocks(dataset.iterator())) as blocks:
        for block in blocks:
            for result in block["result"]:
                yield pickle.loads(result.as_buffer())


def _scan_rows(rows: pa.Table) -> Generator[pa.Table, None, None]:
    for batch in rows["batch"]:
        result = pickle.dumps(scan_batch(pickle.loads(batch.as_buffer())), protocol=5)
        yield pa.table({"result": pa.array([result], pa.large_binary())})


def _with_row_blocks(make) -> ray.data.Dataset:
    """A dataset whose tasks hand on every row as it is made, in any order; others of this process are not touched."""
    context = ray.data.DataContext.get_current()
    mine = context.copy()
    mine.execution_options.preserve_order = False
    mine.enable_progress_bars = False
    mine.target_max_block_size = 1  # a block ends after each row
    with ray.data.DataContext.current(mine):
        return make()
