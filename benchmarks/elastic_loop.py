"""What our loop adds to DeepSpeed's, and what saving adds to our loop.

``python -m benchmarks.elastic_loop [--rounds N] [--size PIXELS] [--batch N]``. A ViT-S student at 224 px learns from
one teacher of ViT-S's widths; batches and the teacher's answers lie in memory, so that neither decoding nor teaching is
timed. Every round is a process of its own; `elastic_loop_sides.py` says how each figure is taken. Prints a table of
medians and spreads; the last line is one JSON object ``{"loop_overhead": ..., "checkpoint_stall": ...}``.
"""

from __future__ import annotations

import argparse
import atexit
import dataclasses
import functools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.elastic_loop_sides import Work, save
from benchmarks.ingest_photographs import make_shards
from radioplat.common import terminal

LOOP_ROUNDS, STALL_ROUNDS = 2, 2
PERIOD, QUIET = 20, 6  # steps between two saves, and how many of them must lie behind the commit to compare with


def loop_overhead(rounds: int = LOOP_ROUNDS, work: Work | None = None) -> float:
    """Our loop's time for a step over that of forward, backward and step by hand on the same engine, minus 1.

    The median over the rounds; a table of medians and spreads is printed.
    """
    work = work or Work()
    found = [_apart("both_loops", work) for _ in range(rounds)]
    return _told("loop_overhead", work, ("ours", "bare"), found)


def checkpoint_stall(rounds: int = STALL_ROUNDS, work: Work | None = None) -> float:
    """The time of a run that saves every 20 steps over that of the same run without saving, minus 1.

    Both are of one process, for two processes differ by more than is measured. A period begins with the step that ends
    in a save; what 20 steps take without saving is 20 times the mean of the steps that begin when the checkpoint has
    been committed, but for the first. The median over periods of all rounds; a table of medians and spreads is printed.

    Raises:
        RuntimeError: saving takes nearly the whole period, so that there is nothing to compare with.
    """
    work = dataclasses.replace(work or Work(), warm_up=PERIOD - 1, steps=3 * PERIOD, save_every=PERIOD)
    found = []
    for _ in range(rounds):
        seen = _apart("saving_loop", work)
        steps, written = seen["steps"], seen["written"]
        for at in range(0, work.steps, PERIOD):
            period = steps[at : at + PERIOD]
            after = max((i for i in range(PERIOD) if written[at + i]), default=0) + 2
            if PERIOD - after < QUIET:
                raise RuntimeError(f"a checkpoint was under way for {after} steps of {PERIOD}; it cannot be told apart")
            found.append({"saving": statistics.fmean(period), "not saving": statistics.fmean(period[after:])})
    return _told("checkpoint_stall", work, ("saving", "not saving"), found)


def _told(name: str, work: Work, sides: tuple[str, str], found: list[dict[str, float]]) -> float:
    """The median share by which the first side takes longer than the second; prints the table."""
    shares = [f[sides[0]] / f[sides[1]] - 1 for f in found]
    shown = {f"{side}, s/step": [f[side] for f in found] for side in sides} | {name: shares}
    spread = (statistics.median, min, max)
    rows = [[label, *(f"{of(values):.4f}" for of in spread)] for label, values in shown.items()]
    title = f"ViT-S at {work.size} px, {work.batch} images a step, {work.precision}, {len(found)} pairs"
    terminal.show_table(title, ["", "median", "least", "most"], rows)
    return statistics.median(shares)


@functools.cache
def _photographs() -> str:
    """A folder of 300 photographs as a shard, for as long as this process lives."""
    folder = tempfile.mkdtemp(prefix="elastic_loop")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    make_shards(Path(folder), shards=1)
    return folder


def _apart(side: str, work: Work) -> dict[str, Any]:
    """One side in a process of its own, as a user runs it; what it prints is shown where it fails."""
    with tempfile.TemporaryDirectory(prefix="elastic_loop") as scratch:
        work = dataclasses.replace(work, shards=work.shards or _photographs(), scratch=scratch)
        path = save(work, Path(scratch) / "work.json")
        # Thread counts are part of what is measured.
        environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
        command = [sys.executable, "-m", "benchmarks.elastic_loop_sides", side, str(path)]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True)
        if ended.returncode:
            raise RuntimeError(f"{side} failed:\n{ended.stderr[-4000:]}")
        found = json.loads(ended.stdout.strip().splitlines()[-1])
    print(f"{side}, saving every {work.save_every or 'no'} steps: {found}", file=sys.stderr, flush=True)
    return found


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description="Our loop, and saving; see the head of the file.")
    arguments.add_argument("--rounds", type=int, default=LOOP_ROUNDS)
    arguments.add_argument("--size", type=int, default=Work.size, help="pixels a side")
    arguments.add_argument("--batch", type=int, default=Work.batch, help="images in a step")
    arguments.add_argument("--precision", default=Work.precision, choices=("fp32", "bf16"))
    arguments.add_argument("--zero-stage", type=int, default=Work.zero_stage)
    arguments.add_argument("--only", choices=("loop_overhead", "checkpoint_stall"))
    given = arguments.parse_args()
    work = Work(size=given.size, batch=given.batch, precision=given.precision, zero_stage=given.zero_stage)
    takes = {"loop_overhead": loop_overhead, "checkpoint_stall": checkpoint_stall}
    found = {n: take(given.rounds, work) for n, take in takes.items() if given.only in (None, n)}
    print(json.dumps({name: round(value, 4) for name, value in found.items()}))


if __name__ == "__main__":
    main()
