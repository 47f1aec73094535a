"""How long the proof at a run's end takes, and how fast every row can be compared again.

``python -m benchmarks.ledger [--cases 64x100000 512x1000000] [--folder DIR]``. For each case of RANKSxSTEPS a ledger is
written as a run writes it: windows that `radioplat.data.ledger.roll_up` makes of the files of all ranks, one sample a
rank and step, with a checkpoint every 10,000 steps. The files of the ranks of a checkpoint are written as one, since a
million of small files would measure the disk; the windows do not differ. The order is a real `SampleOrder` over 10
million rows in 5,000 shards. Then the proof of the run's end, the proof of every row, with its peak of memory, and
`benchmarks/judges/ledger.py`, which imports nothing of radioplat, where the ledger has at most 20 million rows.

The last line on stdout is one JSON object: for each case ``rows``, ``files``, ``mb``, ``end_s`` (the proof at the end),
``full_s``, ``full_samples_per_s`` (of one core), ``peak_mb`` of the full proof beyond the process's own, ``roll_up_s``,
``holds``, and ``judge``, what the judge counted.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.array_source import ArraySource
from radioplat.common import terminal
from radioplat.data.ledger.files import CONSUMED_SCHEMA
from radioplat.data.ledger.lineage import Reached
from radioplat.data.ledger.proof import prove
from radioplat.data.ledger.roll_up import Ordered, roll_up
from radioplat.data.order.order import SampleOrder

IMAGES, SHARDS = 10_000_000, 5_000
BETWEEN = 10_000  # steps between two checkpoints
JUDGED = 20_000_000  # rows that the judge reads at most


def main() -> None:
    """Run each case in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="+", default=["64x100000", "512x1000000"], metavar="RANKSxSTEPS")
    parser.add_argument("--folder", type=Path, help="default: a temporary one, which is removed")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.case:
        print(json.dumps(_full(given.folder, *_sizes(given.case))))
        return
    results = {}
    for case in given.cases:
        folder = Path(tempfile.mkdtemp(dir=given.folder))
        try:
            results[case] = _measure(folder, case)
        finally:
            shutil.rmtree(folder)
        rows = [[name, json.dumps(value)] for name, value in results[case].items()]
        terminal.show_table(f"{case}: ranks x steps", ["", ""], rows)
    print(json.dumps(results))


def _sizes(case: str) -> tuple[int, int]:
    ranks, steps = case.split("x")
    return int(ranks), int(steps)


def _ordered(ranks: int) -> Ordered:
    shard = np.arange(IMAGES) // (IMAGES // SHARDS)
    source = ArraySource(np.arange(IMAGES), shard, np.ones(IMAGES))
    return Ordered(SampleOrder([source], [1.0], seed=1), "order", ranks)


def _measure(folder: Path, case: str) -> dict[str, Any]:
    ranks, steps = _sizes(case)
    ordered = _ordered(ranks)
    rolled = 0.0
    for stop in range(BETWEEN, steps + 1, BETWEEN):
        _write(folder, ordered, ranks, stop - BETWEEN, stop)
        begin = time.perf_counter()
        roll_up(folder, ordered, Reached(stop, 1))
        rolled += time.perf_counter() - begin
        if stop % (steps // 10) == 0:
            terminal.note(f"{case}: {stop} steps, {rolled:.0f} s in roll_up")
    begin = time.perf_counter()
    proof = prove(folder, ordered, Reached(steps, 1))
    end = time.perf_counter() - begin
    command = [sys.executable, "-m", "benchmarks.ledger", "--case", case, "--folder", str(folder)]
    full = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
    files = list(folder.iterdir())
    result = {
        "rows": proof.expected,
        "files": len(files),
        "mb": round(sum(path.stat().st_size for path in files) / 1e6),
        "compared_at_the_end": proof.checked,
        "end_s": round(end, 2),
        **full,
        "roll_up_s": round(rolled, 1),
        "holds": proof.holds and full["holds"],
    }
    if proof.expected <= JUDGED:
        command = [sys.executable, "-m", "benchmarks.judges.ledger", str(folder), "--samples", str(proof.expected)]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        result["judge"] = json.loads(said.splitlines()[-1])
    return result


def _full(folder: Path, ranks: int, steps: int) -> dict[str, Any]:
    """Compare every row on one core."""
    pa.set_cpu_count(1)
    ordered = _ordered(ranks)
    ordered.order.slice(0, 1)
    before = resource.getrusage(resource.RUSAGE_SELF)
    peak = _peak_mb()
    proof = prove(folder, ordered, Reached(steps, 1), full=True)
    after = resource.getrusage(resource.RUSAGE_SELF)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "full_s": round(seconds, 1),
        "full_samples_per_s": round(proof.checked / seconds),
        "peak_mb": round(_peak_mb() - peak),
        "holds": proof.holds and proof.checked == proof.expected,
    }


def _peak_mb() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


def _write(folder: Path, ordered: Ordered, ranks: int, start: int, stop: int) -> None:
    """What the ranks write down of some steps, in the order of the ranks."""
    ids = ordered.order.slice(start * ranks, stop * ranks).sample_id.reshape(-1, ranks)
    position = np.arange(start * ranks, stop * ranks).reshape(-1, ranks)
    step = np.repeat(np.arange(start, stop), ranks).reshape(-1, ranks)
    columns = {
        "attempt": np.full(position.size, 1, np.int32),
        "step": step.T.ravel(),
        "rank": np.repeat(np.arange(ranks, dtype=np.int32), stop - start),
        "position": position.T.ravel(),
        "id": ids.T.ravel(),
        "checksum": np.zeros(position.size, np.int64),
    }
    table = pa.table([columns[name] for name in CONSUMED_SCHEMA.names], schema=CONSUMED_SCHEMA)
    pq.write_table(table, folder / f"consumed-a0001-r00000-{start:08d}-000001.parquet", compression="none")


if __name__ == "__main__":
    main()
