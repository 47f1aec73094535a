"""Scanning of a run's shards: by Ray Data if the run uses a cluster, otherwise in this process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from radioplat.cluster.ray_cluster import joined, uses_ray
from radioplat.data.scan.scan import ScanBatch, Scanner, ScanResult, is_little, scan_here
from radioplat.spec.resolved.teacher import frozen_teachers
from radioplat.spec.schema.root import Spec


@contextlib.contextmanager
def scanner(spec: Spec, here: Scanner = scan_here) -> Iterator[Scanner]:
    """Yield the function that scans the shards of ``spec``; a cluster that it joins stays joined until the block ends.

    The cluster is used only for large scans: a Ray Data job takes some seconds to start, in which this process scans a
    gigabyte of shards.

    Args:
        here: scans without a cluster, and small inputs.
    """
    with contextlib.ExitStack() as stack:

        def scan(batches: list[ScanBatch]) -> Iterator[ScanResult]:
            """Scan in this process if there is little to scan, otherwise on the cluster."""
            if is_little(batches) or not uses_ray(spec):
                yield from here(batches)
                return
            from radioplat.data.scan.ray_scan import scan_on_ray

            stack.enter_context(joined(spec, frozen_teachers(spec)))
            # Closed before the cluster is left, also if the caller fails and keeps the iterator.
            yield from stack.enter_context(contextlib.closing(scan_on_ray(batches, spec.cluster.cpus_per_decode)))

        yield scan
