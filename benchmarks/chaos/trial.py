"""One trial: a run to which things are done, started again until it is done, and compared with a quiet one."""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import yaml
from safetensors.numpy import load_file

from benchmarks.chaos.process import Faults, Start
from benchmarks.elastic_inputs import MICRO_BATCHES, tiny_spec
from benchmarks.judges.ledger import judged

STEPS, EVERY, BATCH = 24, 4, 2 * MICRO_BATCHES
STARTS = 8  # of one trial, at most
MEMORY = 512 * 2**20  # more than the quiet run is too much
TRY_AGAIN, NAMED = 75, 1  # exit statuses


@dataclass
class Quiet:
    """What a run without faults comes to.

    Attributes:
        weights: digest of the last checkpoint's tensors.
        peak: memory in bytes.
        operations: changes of files below the run's folder.
    """

    weights: str
    peak: int
    operations: int


@dataclass
class Trial:
    """A run in a folder of its own.

    Args:
        folder: empty; the results are in ``folder/run``.
        inputs: of `benchmarks.elastic_inputs.make_inputs`.
        rng: decides what is done, and when.
        changes: overrides of the spec.
        environment: of its processes.

    Attributes:
        done: what was done to it, for a person.
        problems: what does not hold.
        counts: ``tracebacks``, ``hangs``, ``memory_over``, ``unlearned_unreported``.
    """

    folder: Path
    inputs: Path
    rng: random.Random
    changes: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    starts: list[Start] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.faults = Faults(self.folder / "switch", self.run)
        spec = tiny_spec(self.inputs, self.folder / "run", STEPS, (1, 1), checkpoint_interval=EVERY)
        spec["cluster"]["mode"] = "local"
        change(spec, self.changes)
        self.spec = self.folder / "spec.yaml"
        self.spec.write_text(yaml.safe_dump(spec))

    @property
    def run(self) -> Path:
        """The task folder."""
        return self.folder / "run" / "distill"

    def start(self, *overrides: str) -> Start:
        """Start the command."""
        arguments = ["distill", "-e", str(self.spec), *overrides]
        begun = Start(arguments, self.folder / "output.txt", {**self.environment, **self.faults.environment})
        self.starts.append(begun)
        return begun

    def steps(self) -> int:
        """Return the newest step in ``status.json``."""
        return newest_step(self.run)

    def finish(self, expected: Sequence[int] = (0,)) -> None:
        """Start it until it is done; an exit status that is none of ``expected`` is a problem."""
        while len(self.starts) < STARTS:
            status = self.start().wait()
            if status == 0:
                return
            if status not in expected:
                self.problems.append(f"exit status {status}: {self.starts[-1].text.strip()[-300:]}")
        self.problems.append(f"not done after {STARTS} starts")

    def judge(self, quiet: Quiet) -> dict[str, Any]:
        """Compare what it has come to with a quiet run; nothing of radioplat is used."""
        for start in self.starts:
            # Lines of Ray's own actors, such as (TrainController pid=1), are Ray's log of what was killed.
            lines = [line for line in start.text.splitlines() if "pid=" not in line]
            self.counts["tracebacks"] += sum("Traceback (most recent call last)" in line for line in lines)
            self.counts["hangs"] += start.hung
            self.counts["memory_over"] += start.peak > quiet.peak + MEMORY
        try:
            ledger = judged(self.run / "ledger", STEPS * BATCH)
            wrong = {k: ledger[k] for k in ("missing", "repeated", "links_wrong", "blocks_wrong") if ledger[k]}
            if wrong:
                self.problems.append(f"the ledger: {wrong}")
            last = json.loads((self.run / "status.json").read_bytes().splitlines()[-1])
            if last.get("status") != "SUCCESS":
                self.problems.append(f"the last line of status.json is {last}")
            self.counts["unlearned_unreported"] += self._unreported()
            weights = digest(self.run / "model_latest")
        except (OSError, ValueError, KeyError) as error:
            self.problems.append(f"{type(error).__name__}: {error}")
            weights = ""
        held = not self.problems and not self.counts.total()
        return {"held": held, "bit_equal": weights == quiet.weights, **self.counts, "problems": self.problems}

    def _unreported(self) -> int:
        """Count samples without weight of which no warning in ``status.json`` says anything."""
        rows = sum(pq.read_metadata(path).num_rows for path in (self.run / "ledger").glob("rejected-a*.parquet"))
        text = (self.run / "status.json").read_text(errors="replace")
        return 0 if "weight" in text or "bad" in text else rows


def change(spec: dict[str, Any], changes: dict[str, Any]) -> None:
    """Set fields of a spec by their paths; numbers are places in lists."""
    for path, value in changes.items():
        *parts, name = path.split(".")
        inner: Any = spec
        for part in parts:
            inner = inner[int(part)] if part.isdecimal() else inner.setdefault(part, {})
        inner[name] = value


def newest_step(run: Path) -> int:
    """Return the newest step in the ``status.json`` of a task folder."""
    try:
        lines = (run / "status.json").read_text(errors="replace").splitlines()[-20:]
    except OSError:
        return 0
    steps = [0]
    for line in lines:
        try:
            steps.append(int(json.loads(line).get("step") or 0))
        except (ValueError, AttributeError, TypeError):
            continue
    return max(steps)


def digest(checkpoint: Path) -> str:
    """Return a digest of the tensors of a checkpoint's student."""
    total = hashlib.sha256()
    for name, tensor in sorted(load_file(checkpoint / "student.safetensors").items()):
        total.update(name.encode() + tensor.tobytes())
    return total.hexdigest()


def quiet_run(trial: Trial) -> Quiet:
    """Run it without faults.

    Raises:
        RuntimeError: it does not come to its end.
    """
    begun = trial.start()
    if begun.wait() != 0:
        raise RuntimeError(f"the run without faults ended with {begun.status}:\n{begun.text[-2000:]}")
    return Quiet(digest(trial.run / "model_latest"), begun.peak, trial.faults.operations)
