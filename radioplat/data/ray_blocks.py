"""Blocks of a Ray Data stream, fetched by the thread that asks for them."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pyarrow as pa
import ray
import ray.data


def read_blocks(iterator: ray.data.DataIterator) -> Generator[pa.Table, None, None]:
    """The blocks in order; the execution is ended with the generator, however that ends.

    ``DataIterator.iter_batches`` has threads of its own, which nothing can wait for, and the first call of theirs that
    comes after ``ray.shutdown`` ends the process.
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
    """Have Ray Data stop, for this reader reads no more; where Ray is shut down, nothing is left to stop.

    Args:
        executor: of a dataset that is executed in this process.
    """
    if ray.is_initialized():
        iterator._on_iteration_end(executor)
