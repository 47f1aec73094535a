"""Where the shards of a run are scanned: by Ray Data where the run uses a cluster, else in this process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from radioplat.cluster.ray_cluster import joined, uses_ray
from radioplat.data.scan.scan import ScanBatch, Scanner, ScanResult, is_little, scan_here
from radioplat.spec.resolved.teacher import frozen_teachers
from radioplat.spec.schema.root import Spec


@contextlib.contextmanager
def scanner(spec: Spec, here: Scanner = scan_here) -> Iterator[Scanner]:
    """Yield the function that scans the shards of ``spec``; a cluster that it joins or starts stays for the block.

    A cluster is only touched when there is something to scan that is worth it: a job of Ray Data takes some seconds to
    start, in which this process looks through a gigabyte of shards.

    Args:
        here: scans in local mode, and what is little.
    """
    with contextlib.ExitStack() as stack:

        def scan(batches: list[ScanBatch]) -> Iterator[ScanResult]:
            """Here where it is little, else on the cluster."""
            if is_little(batches) or not uses_ray(spec):
                yield from here(batches)
                return
            from radioplat.data.scan.ray_scan import scan_on_ray

            stack.enter_context(joined(spec, frozen_teachers(spec)))
            # Ended before the cluster is left, also where whoever reads the results fails and keeps them open.
            yield from stack.enter_context(contextlib.closing(scan_on_ray(batches, spec.cluster.cpus_per_decode)))

        yield scan
