"""Is a step that `radioplat replay` computes again the recorded one, and do the arms of `radioplat fork` see the same?

Imports nothing of the platform that it judges; reads what runs, replays and forks leave as files: ``status.json``, the
ledger's Parquet files, ``step.json`` and ``micro_batch_*.npz``.

``python -m benchmarks.judges.time_machine replay RUN STEP OUT [--kill S]``: gives the command, with ``--kill`` once
before, and kills that one with all its processes after S seconds. Last line: ``difference`` (largest of a term,
relative to the recorded loss), ``pixels_equal`` (share of samples whose CRC-32 of the pixels in the ``.npz`` files is
the ledger's), ``samples``, ``run_unchanged`` (no byte of the run's folder changed).

``... fork RUN STEP OUT [--kill S] [--arm key=value]...``: last line: ``ids_equal`` (share of the arms whose samples
from the step on are the run's, by step and position), ``control_equal`` (whether the weights of the arm without changes
are the run's), ``run_unchanged``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq


def main() -> None:
    """Give the command, look and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("replay", "fork"))
    parser.add_argument("run", type=Path)
    parser.add_argument("step", type=int)
    parser.add_argument("out", type=Path)
    parser.add_argument("--kill", type=float, metavar="S")
    parser.add_argument("--arm", action="append", default=[])
    given = parser.parse_args()
    before = content(given.run)
    if given.what == "replay":
        words = ["replay", str(given.run), "--step", str(given.step), "--dump", str(given.out)]
    else:
        arms = [word for arm in given.arm for word in ("--arm", arm)]
        words = ["fork", str(given.run), "--at", str(given.step), *arms, "--out", str(given.out)]
    command = [sys.executable, "-m", "radioplat.cli", *words]
    if given.kill:
        killed(command, given.kill)
    status = subprocess.run(command, stdout=sys.stderr).returncode
    seen = (
        replayed(given.run, given.step, given.out)
        if given.what == "replay"
        else forked(given.run, given.step, given.out)
    )
    print(json.dumps({**seen, "run_unchanged": float(content(given.run) == before), "exit_status": status}))


def killed(command: list[str], seconds: float) -> None:
    """Start a command and kill its process group after some seconds; what it started elsewhere ends by itself."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    time.sleep(seconds)
    if process.poll() is not None:
        sys.exit(f"the command ended before {seconds} s: choose a shorter time")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def replayed(run: Path, step: int, out: Path) -> dict[str, float]:
    """Compare a step's files with what the run recorded."""
    facts = json.loads((out / "step.json").read_text())
    recorded = recorded_terms(run, step)
    gaps = [abs(facts["replayed"][name] - value) for name, value in recorded.items()]
    ledger = {position: (sample, crc) for position, sample, crc in rows_of(run, step - 1)}
    equal = count = 0
    for path in sorted(out.glob("micro_batch_*.npz")):
        with np.load(path) as file:
            first = next(name for name in file.files if name.startswith("view/"))
            for position, sample, pixels in zip(file["position"], file["sample_id"], file[first], strict=True):
                count += 1
                equal += ledger.get(int(position)) == (int(sample), zlib.crc32(np.ascontiguousarray(pixels).data))
    return {
        "difference": max(gaps) / abs(recorded["loss"]),
        "pixels_equal": equal / max(count, len(ledger)),
        "samples": count,
    }


def forked(run: Path, step: int, out: Path) -> dict[str, float]:
    """Compare the samples of each arm with the run's, and the weights of the arm without changes."""
    last = max(row[0] for row in all_rows(run))
    wanted = sorted(row[:3] for row in all_rows(run) if step <= row[0] <= last)
    arms = [
        path.parent.parent for path in sorted(out.glob("*/distill/status.json")) if path.parent.parent.name != "start"
    ]
    same = [sorted(row[:3] for row in all_rows(arm / "distill") if row[0] >= step) == wanted for arm in arms]
    weights = [sha256(each / "model_latest" / "student.safetensors") for each in (run, out / "unchanged" / "distill")]
    return {"ids_equal": sum(same) / len(same), "arms": len(arms), "control_equal": float(weights[0] == weights[1])}


def recorded_terms(run: Path, step: int) -> dict[str, float]:
    """The loss and its terms that a run wrote of a step, as last written."""
    terms: dict[str, float] = {}
    for line in (run / "status.json").read_text().splitlines():
        record: dict[str, Any] = json.loads(line)
        if record.get("step") == step and "max_step" in record and "loss" in record["kpi"]:
            terms = {name: value for name, value in record["kpi"].items() if name.split("/")[0] == "loss"}
    return terms


def all_rows(run: Path) -> list[tuple[int, int, int, int]]:
    """Step, position, sample and checksum of each row of a ledger; of a step that ran twice the last attempt's."""
    rows: dict[tuple[int, int], tuple[int, int, int, int, int]] = {}
    for path in sorted((run / "ledger").glob("consumed-*.parquet")):
        table = pq.read_table(path, partitioning=None).to_pydict()
        columns = (table[name] for name in ("attempt", "step", "position", "id", "checksum"))
        for attempt, step, position, sample, crc in zip(*columns, strict=True):
            known = rows.get((step, position))
            if known is None or attempt >= known[0]:
                rows[step, position] = (attempt, step, position, sample, crc)
    return [row[1:] for row in rows.values()]


def rows_of(run: Path, step: int) -> list[tuple[int, int, int]]:
    """Position, sample and checksum of each sample of a step, counted from 0."""
    return [row[1:] for row in all_rows(run) if row[0] == step]


def content(folder: Path) -> dict[str, str]:
    """The hash of each file in a folder."""
    return {str(path.relative_to(folder)): sha256(path) for path in sorted(folder.rglob("*")) if path.is_file()}


def sha256(path: Path) -> str:
    """The hash of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    main()
