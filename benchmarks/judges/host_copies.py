"""Which bytes go from pageable memory to a device, and in which thread? Imports nothing of radioplat, needs no GPU.

``python -m benchmarks.judges.host_copies MODULE:FUNCTION [ARGUMENT ...]`` iterates over what the function yields, one
item for each micro-batch, with `benchmarks.judges.cuda_substitute` in the place of CUDA. The thread that iterates is
the training thread. The first two micro-batches are left out.

The last line on stdout is one JSON object; bytes are those of a micro-batch.
"""

from __future__ import annotations

import argparse
import importlib
import json
from typing import Any

from benchmarks.judges.cuda_substitute import COUNTS, substitute

LEFT_OUT = 2  # first micro-batches


def summary(micro_batches: int) -> dict[str, Any]:
    """Return the figures of ``micro_batches``."""

    def of(*words: str) -> float:
        return round(sum(n for key, n in COUNTS.bytes.items() if set(words) <= set(key)) / micro_batches, 1)

    places = {" ".join(key): n / micro_batches for key, n in COUNTS.bytes.most_common()}
    return {
        "micro_batches": micro_batches,
        "bytes": of("to_device"),
        "unpinned_bytes": of("to_device", "unpinned"),
        "training_thread_bytes": of("training"),
        "bytes_to_host": of("to_host"),
        "unpinned_bytes_to_host": of("to_host", "unpinned"),
        "bytes_waited_for": of("waits"),
        "device_waits": sum(COUNTS.waits.values()),
        "threads_that_chose_the_device": sorted(COUNTS.chosen),
        "errors_of_order": dict(COUNTS.errors),
        "at": places,
    }


def main() -> None:
    """Count, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("entry", metavar="MODULE:FUNCTION")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    module, _, function = given.entry.partition(":")
    run = getattr(importlib.import_module(module), function)
    substitute()
    number = 0
    for number, _ in enumerate(run(*given.arguments), 1):  # noqa: B007
        if number == LEFT_OUT:
            COUNTS.clear()
    print(json.dumps(summary(number - LEFT_OUT)))


if __name__ == "__main__":
    main()
