"""How soon a run goes on after a worker or a node is lost, and what our loop and its checkpoints cost.

``python -m benchmarks.elastic [--rounds 2] [--only recovery|loop]``. Recovery: a tiny run on two raylets
of this machine loses a training worker (-9), or a raylet with all that it started (-9); the time is that from the
kill to the end of the next optimizer step. The table splits the median run: until the loss is known (detection),
until the new workers enter our code (scheduling, which is mostly imports), until everything is
loaded (load), and until the first step is done (first batch). ``loop_overhead`` and ``checkpoint_stall``: see
:mod:`benchmarks.elastic_loop`.

The last line is one JSON object of medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from _thread import interrupt_main
from contextlib import suppress
from pathlib import Path

import radioplat
from benchmarks.elastic_inputs import make_inputs, tiny_spec
from clusters.local import LocalCluster
from radioplat.common import terminal
from radioplat.tracking.attempts.attempts import Attempts
from radioplat.tracking.follow import CheckpointEvent, StepEvent

PHASES = ("detection", "scheduling", "load", "first batch")


class Loss:
    """A callback that kills once, after the first checkpoint and a few steps after a save, and interrupts the run when
    it goes on.

    Attributes:
        split: seconds of each phase, when the run has gone on.
        fault: why it did not; a callback cannot raise what ends a run.
    """

    def __init__(self, cluster: LocalCluster, what: str, folder: Path) -> None:
        self._cluster, self._what, self._folder = cluster, what, folder
        self.killed = 0.0
        self.split: dict[str, float] | None = None
        self.fault: RuntimeError | None = None
        self._saved = False

    def __call__(self, event: StepEvent | CheckpointEvent) -> None:
        self._saved = self._saved or isinstance(event, CheckpointEvent)
        if self._saved and not self.killed and isinstance(event, StepEvent) and event.step % 10 > 3:
            number = max(n for n in self._cluster.nodes if self._cluster.workers(n))
            self.killed = time.time()
            if self._what == "worker":
                self._cluster.kill_worker(number)
            else:
                self._cluster.kill(number)
        elif self.killed and not self.split and not self.fault:
            try:
                self.split = phases(self.killed, self._folder)
            except RuntimeError as error:
                self.fault = error
            if self.split or self.fault:
                interrupt_main()


def recovery(what: str, inputs: Path, results: Path) -> dict[str, float]:
    """Seconds of each phase after one loss.

    Args:
        what: ``worker`` or ``node``.
    """
    import ray

    folder = results / "distill"
    with LocalCluster(nodes=2, head_cpus=3) as cluster:
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        loss = Loss(cluster, what, folder)
        spec = tiny_spec(inputs, results, 2000, (1, 2), resize_interval_s=600.0)
        spec["cluster"]["address"] = cluster.address
        with suppress(KeyboardInterrupt):
            radioplat.distill(spec, callbacks=[loss], say=lambda line: None)
    if not loss.split:
        raise loss.fault or RuntimeError(f"the run did not go on after the loss of a {what}; see {folder}")
    return loss.split


def phases(killed: float, folder: Path) -> dict[str, float] | None:
    """The time from ``killed`` (seconds since the epoch) to the next step, from what the run has written to ``folder``.

    None while it has not taken that step.
    """
    ended = next((e for e in Attempts(folder).read() if e.event == "end" and e.time > killed), None)
    if ended is None:
        return None
    expected = {"worker_killed", "node_lost"}
    if ended.cause not in expected:
        raise RuntimeError(f"the run ended its attempt with {ended.cause}: {ended.detail}")
    lines = map(json.loads, (folder / "status.json").read_text().splitlines())
    recoveries = (line["recovery"] for line in lines if "recovery" in line)
    found = next((recovery for recovery in recoveries if recovery.get("ended") == ended.time), None)
    if found is None:
        return None
    marks = [killed, ended.time, found["entered"], found["ready"], found["stepped"]]
    return dict(zip(PHASES, (b - a for a, b in zip(marks, marks[1:], strict=False)), strict=True))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Recovery, loop overhead, checkpoint stall; see the head of the file.")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", choices=("recovery", "loop"))
    given = parser.parse_args()
    figures: dict[str, float] = {}
    if given.only != "loop":
        figures |= _recoveries(given.rounds)
    if given.only != "recovery":
        from benchmarks.elastic_loop import checkpoint_stall, loop_overhead

        figures |= {"loop_overhead": loop_overhead(), "checkpoint_stall": checkpoint_stall()}
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


def _recoveries(rounds: int) -> dict[str, float]:
    """Medians of both losses; the table of their phases is printed."""
    rows, figures = [], {}
    with tempfile.TemporaryDirectory(prefix="elastic") as scratch:
        make_inputs(Path(scratch))
        for what in ("worker", "node"):
            found = []
            for number in range(rounds):
                found.append(recovery(what, Path(scratch), Path(scratch) / f"{what}{number}"))
                print(f"{what}, round {number + 1}: {found[-1]}", file=sys.stderr, flush=True)
            totals = [sum(split.values()) for split in found]
            figures[f"recovery_{what}_s"] = statistics.median(totals)
            medians = [statistics.median(split[phase] for split in found) for phase in PHASES]
            rows.append([what, *(f"{seconds:.1f}" for seconds in (figures[f"recovery_{what}_s"], *medians))])
    terminal.show_table("seconds from the kill to the end of the next step", ["lost", "in all", *PHASES], rows)
    return figures


if __name__ == "__main__":
    main()
