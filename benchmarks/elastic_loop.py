"""What our loop adds to DeepSpeed's, and what saving adds to our loop.

``python -m benchmarks.elastic_loop [--rounds N] [--size PIXELS] [--batch N]``. A ViT-S student at 224 px learns from
one teacher of ViT-S's widths; batches and the teacher's answers lie in memory, so that neither decoding nor teaching is
timed. Every round is a process of its own; `elastic_loop_sides.py` says how each figure is taken. Prints a table of
medians and spreads; the last line is one JSON object ``{"loop_overhead": ..., "checkpoint_stall": ...}``.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.elastic_loop_sides import Work, save
from benchmarks.ingest_photographs import make_shards
from radioplat import terminal

LOOP_ROUNDS, STALL_ROUNDS = 3, 3


@dataclass(frozen=True)
class Figure:
    """A share of time, with what it was taken from.

    Attributes:
        rounds: the share in each round.
        seconds: of a step, by side, in each round.
    """

    name: str
    rounds: list[float]
    seconds: dict[str, list[float]]

    @property
    def value(self) -> float:
        """The median over the rounds."""
        return statistics.median(self.rounds)

    def rows(self) -> list[list[str]]:
        """Name, median, least, most; the share first, then each side's seconds a step."""
        shown = [(self.name, self.rounds), *((f"  {side}, s/step", times) for side, times in self.seconds.items())]
        return [[name, *(f"{of(values):.4f}" for of in (statistics.median, min, max))] for name, values in shown]


def loop_overhead(rounds: int = LOOP_ROUNDS, work: Work | None = None) -> Figure:
    """Our loop's time for a step over that of forward, backward and step by hand on the same engine, minus 1."""
    found = [_apart("both_loops", work or Work()) for _ in range(rounds)]
    shares = [f["ours"] / f["bare"] - 1 for f in found]
    return Figure("loop_overhead", shares, {side: [f[side] for f in found] for side in ("ours", "bare")})


def checkpoint_stall(rounds: int = STALL_ROUNDS, work: Work | None = None) -> Figure:
    """The time of a run that saves every 20 steps over that of the same run without saving, minus 1.

    Both are runs of the whole loop over the same steps, in turn; every other round begins with the other one. The clock
    runs from step 10 to step 50: over two saves, and ten steps after each, in which what is written beside the training
    takes its time too.
    """
    work, found = dataclasses.replace(work or Work(), warm_up=10, steps=40), []
    sides = {"saving": dataclasses.replace(work, save_every=20), "not saving": work}
    for number in range(rounds):
        order = list(sides) if number % 2 else list(sides)[::-1]
        found.append({side: _apart("our_loop", sides[side])["ours"] for side in order})
    shares = [f["saving"] / f["not saving"] - 1 for f in found]
    return Figure("checkpoint_stall", shares, {side: [f[side] for f in found] for side in sides})


def _apart(side: str, work: Work) -> dict[str, float]:
    """One side in a process of its own, as a user runs it; what it prints is shown where it fails."""
    with tempfile.TemporaryDirectory(prefix="elastic_loop") as scratch:
        folder = Path(scratch)
        shards = Path(work.shards) if work.shards else folder / "shards"
        make_shards(shards, shards=1)
        path = save(dataclasses.replace(work, shards=str(shards), scratch=scratch), folder / "work.json")
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
    with tempfile.TemporaryDirectory(prefix="elastic_loop") as scratch:
        shards = str(Path(scratch) / "shards")
        work = Work(shards, given.size, given.batch, precision=given.precision, zero_stage=given.zero_stage)
        takes = {"loop_overhead": loop_overhead, "checkpoint_stall": checkpoint_stall}
        wanted = {n: take for n, take in takes.items() if given.only in (None, n)}
        figures = [take(given.rounds, work) for take in wanted.values()]
    rows = [row for figure in figures for row in figure.rows()]
    columns = ["share of time", "median", "least", "most"]
    terminal.show_table(f"ViT-S at {work.size} px, {work.batch} images a step, {given.rounds} rounds", columns, rows)
    print(json.dumps({name: None for name in takes} | {f.name: round(f.value, 4) for f in figures}))


if __name__ == "__main__":
    main()
