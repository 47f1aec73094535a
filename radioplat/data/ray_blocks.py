"""Fetch the blocks of a Ray Data iterator in the calling thread."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pyarrow as pa
import ray
import ray.data


def read_blocks(iterator: ray.data.DataIterator) -> Generator[pa.Table, None, None]:
    """Yield the blocks in order; the execution ends with the generator.

    ``DataIterator.iter_batches`` has its own threads, which nobody can wait for and whose first call after
    ``ray.shutdown`` ends the process.
    """
    bundles, _, executor = iterator._to_ref_bundle_iterator()
    try:
        for bundle in bundles:
            for reference in bundle.block_refs:
                yield ray.get(reference)
    finally:
        if isinstance(bundles, Generator):
            bundles.close()
        end_execution(iterator, executor)


def end_execution(iterator: ray.data.DataIterator, executor: Any = None) -> None:
    """Stop the execution of this reader; without effect after ``ray.shutdown``.

    Args:
        executor: of a dataset that is executed in this process, else None.
    """
    if ray.is_initialized():
        iterator._on_iteration_end(executor)
