"""Do two workers take less time if micro-batches are dealt by cost? Imports nothing of the platform that it judges.

``python -m benchmarks.judges.dealing SPEC.json FOLDER [--runs even cost cost even] [--skip N] [--take-cpu]``: starts
``radioplat distill`` by its command line once for each of ``--runs``, on a Ray cluster of its own on this machine, with
``train.dealing`` set to that and two workers. With ``--take-cpu`` each worker is bound to a core of its own as soon as
it trains, and a process that never sleeps is bound to the first one's. Ray's own processes and the readers share the
cores, mostly the second, so that process has a slightly higher priority (nice -1, for which root is needed): the first
worker is then about half as fast as the second. ``slowness`` says how much exactly.

The last line on stdout is one JSON object: by kind of dealing the ``seconds`` of each step, a list for each run (the
first ``--skip`` steps are left out); whether every step had the same samples and pixels in all runs (``ids_equal``,
from the ledger, read with pyarrow), the largest relative ``loss_difference`` to the first run in its first 20 steps,
``anew``: from which steps on each run said that it dealt anew, and with ``--take-cpu`` the ``slowness`` of the first
worker in each run, relative to the second: seconds in which the kernel ran its busiest thread or let it wait for a
core, over those in which it ran (Linux's schedstat).
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.judges.same_weights import workers

PATIENCE_S, COMPARED = 600.0, 20
COLUMNS = ["step", "position", "id", "checksum"]


def main() -> None:
    """Run, compare and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("spec", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", nargs="+", choices=("even", "cost"), default=["even", "cost", "cost", "even"])
    parser.add_argument("--skip", type=int, default=30)
    parser.add_argument("--take-cpu", action="store_true")
    given = parser.parse_args()
    spec = json.loads(given.spec.read_text(encoding="utf-8"))
    seconds: dict[str, list[list[float]]] = {}
    anew: list[list[int]] = []
    homes: list[Path] = []
    slowness: list[float] = []
    for number, dealing in enumerate(given.runs):
        home = given.folder / f"{number}_{dealing}"
        slower = run(spec, home, dealing, given.take_cpu)
        slowness += [round(slower, 3)] if slower else []
        homes.append(home)
        each = figures(home, "seconds/step")
        seconds.setdefault(dealing, []).append([each[step] for step in sorted(each)][given.skip :])
        text = (home / "distill" / "status.json").read_text(encoding="utf-8")
        anew.append([int(step) for step in re.findall(r"from step (\d+) on micro-batches are dealt anew", text)])
    first, *others = homes
    known, losses = samples(first), figures(first, "loss")
    differences = [
        abs(figures(home, "loss")[step] / losses[step] - 1) for home in others for step in sorted(losses)[:COMPARED]
    ]
    print(
        json.dumps(
            {
                "seconds": seconds,
                "ids_equal": all(samples(home).equals(known) for home in others),
                "samples": len(known),
                "loss_difference": max(differences, default=0.0),
                "anew": anew,
                "slowness": slowness,
            }
        )
    )


def run(spec: dict[str, Any], home: Path, dealing: str, take_cpu: bool) -> float | None:
    """Train with two workers to the end; return how much slower the first is than the second, if CPU is taken."""
    home.mkdir(parents=True)
    mine = copy.deepcopy(spec)
    mine["results_dir"] = str(home)
    mine["train"] |= {"dealing": dealing, "num_gpus": 2, "min_workers": 2, "max_workers": 2}
    mine["cluster"] = {**mine.get("cluster", {}), "mode": "ray"}
    path = home / "spec.json"
    path.write_text(json.dumps(mine), encoding="utf-8")
    command = [sys.executable, "-m", "radioplat.cli", "distill", "-e", str(path)]
    with contextlib.ExitStack() as stack:
        output = stack.enter_context((home / "output.txt").open("ab"))
        process = stack.enter_context(subprocess.Popen(command, stdout=output, stderr=output))
        last, since, taken = -1, time.monotonic(), not take_cpu
        pids: list[int] = []
        before: list[dict[str, np.ndarray]] = []
        after = before
        while process.poll() is None:
            step = len(figures(home, "seconds/step"))
            if step > 0 and not taken:
                pids, taken = workers(), True
                stack.enter_context(cpu_taken(pids))
                before = after = scheduled(pids)
            elif pids:
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # they end with the run
                    after = scheduled(pids)
            if step != last:
                last, since = step, time.monotonic()
            if time.monotonic() - since > PATIENCE_S:
                process.kill()
                sys.exit(f"{home}: no new step after step {step}")
            time.sleep(0.5)
    if process.returncode:
        sys.exit(f"{home}: exit status {process.returncode}; see output.txt there")
    if not pids:
        return None
    first, second = (slowed(*pair) for pair in zip(before, after, strict=True))
    return first / second


def scheduled(pids: list[int]) -> list[dict[str, np.ndarray]]:
    """Return for each process, by thread, the seconds in which it ran and those in which it waited for a core."""
    found: list[dict[str, np.ndarray]] = []
    for pid in pids:
        found.append({})
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread has ended
                found[-1][thread.name] = 1e-9 * np.array((thread / "schedstat").read_text().split()[:2], np.float64)
    return found


def slowed(before: dict[str, np.ndarray], after: dict[str, np.ndarray]) -> float:
    """Return how much longer the busiest thread of a process took because it waited for its core."""
    ran, waited = max((after[name] - before[name] for name in before.keys() & after.keys()), key=lambda pair: pair[0])
    return float((ran + waited) / ran)


@contextlib.contextmanager
def cpu_taken(pids: list[int]) -> Iterator[None]:
    """Bind each process to a core of its own, and take a part of the first one's until the block ends."""
    cores = sorted(os.sched_getaffinity(0))
    if len(pids) != 2 or len(cores) < 2:
        sys.exit(f"{len(pids)} workers on {len(cores)} cores, not two on two")
    for pid, core in zip(pids, cores, strict=False):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), {core})
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        os.sched_setaffinity(busy.pid, {cores[0]})
        with contextlib.suppress(PermissionError):  # without root the worker keeps a little more
            os.setpriority(os.PRIO_PROCESS, busy.pid, -1)
        yield
    finally:
        busy.kill()
        busy.wait()


def figures(home: Path, name: str) -> dict[int, float]:
    """Return a figure of each step that the run has reported so far."""
    path = home / "distill" / "status.json"
    found: dict[int, float] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        with contextlib.suppress(json.JSONDecodeError):  # the last line may be in the making
            record = json.loads(line)
            if "max_step" in record and name in record["kpi"]:
                found[record["step"]] = record["kpi"][name]
    return found


def samples(home: Path) -> pa.Table:
    """Return the rows of the ledger, by step and position: which samples with which pixels each step consumed."""
    ledger = home / "distill" / "ledger"
    lines = [json.loads(line) for line in (ledger / "windows.jsonl").read_text(encoding="utf-8").splitlines()]
    named = {line["file"] for line in lines if "file" in line}
    stop = max((line["stop"] for line in lines if "file" in line), default=0)
    tables = [pq.read_table(ledger / name, columns=COLUMNS, partitioning=None) for name in sorted(named)]
    for path in ledger.glob("consumed-a*.parquet"):
        if path.name not in named:
            table = pq.read_table(path, columns=COLUMNS, partitioning=None)
            tables.append(table.filter(np.asarray(table["step"]) >= stop))
    return pa.concat_tables(tables).sort_by([("step", "ascending"), ("position", "ascending")]).combine_chunks()


if __name__ == "__main__":
    main()
