"""Scan shards as a Ray Data job: tasks on the whole cluster read the tars and stream results back."""

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
    """Scan on the cluster that this process is connected to; yield results as they become ready.

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
    """Create a dataset whose tasks return each row at once, in any order; other datasets keep the global settings."""
    context = ray.data.DataContext.get_current().copy()
    context.execution_options.preserve_order = False
    context.enable_progress_bars = False
    context.target_max_block_size = 1  # a block ends after each row
    with ray.data.DataContext.current(context):
        return make()
