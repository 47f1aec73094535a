"""The task ``compress``: stages in order, each from what the one before left, with gates between them."""

from __future__ import annotations

import copy
import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from radioplat.common.sigterm import heeding_sigterm
from radioplat.common.terminal import note
from radioplat.errors import RadioplatError, SpecError
from radioplat.models.detectors.checkpoint import DETECTOR_FILE
from radioplat.models.student.checkpoint import EMA_FILE, HEADS_FILE, STUDENT_FILE
from radioplat.spec.checks.tasks.compress import compress_problems
from radioplat.spec.loading.load import load_spec, to_yaml
from radioplat.spec.schema.compress import OnFail, Stage
from radioplat.spec.schema.root import Spec
from radioplat.tasks.compress.derive import Inputs, check_chain, depends_on, fingerprint, placed, stage_spec
from radioplat.tasks.compress.groups import Group, Step, groups_of
from radioplat.tasks.compress.record import Entry, Record
from radioplat.tasks.compress.relax import milder
from radioplat.tasks.compress.stages import UNTRAINED, run_stage, student_outcome
from radioplat.tasks.evaluate.gate_metrics import gate_metric, measure, measuring_spec
from radioplat.tasks.export.export import find_checkpoint
from radioplat.tracking.lease import Lease
from radioplat.tracking.results import TaskFolder
from radioplat.tracking.task_log import keep_diary

RECORD, START, STUDENT = "compress.json", "00_start", "student"


class GateFailed(RadioplatError):
    """A stage keeps less of the starting student than ``compress.gates.min_kept`` asks."""


@dataclass(frozen=True)
class CompressReport:
    """What the chain came to.

    Attributes:
        entries: every stage and retry of this chain, in order; the first is the starting student.
        student: the last student, a checkpoint folder.
    """

    folder: Path
    entries: list[Entry]
    metric: str
    student: Path


@dataclass
class _Place:
    """Where the chain is.

    Attributes:
        inputs: what the next stage takes.
        made: hashes of what made the last student (``student``), ONNX file (``export``) and engine (``engine``).
    """

    inputs: Inputs = field(default_factory=Inputs)
    made: dict[str, str] = field(default_factory=dict)


def compress(
    spec: Spec | dict[str, Any] | str | Path, overrides: Sequence[str] = (), *, say: Callable[[str], None] = note
) -> CompressReport:
    """Run ``compress.stages``; the same command goes on where it was.

    Args:
        say: called with each line for the user.

    Raises:
        SpecError: the stages cannot stand in this order, or a stage's fields contradict each other.
        GateFailed: too little was kept, and there is no (further) milder setting.
        RadioplatError: as a stage's task does.
        Stopped: SIGTERM came; a stage that trains has saved.
    """
    spec = load_spec(spec, overrides)
    if problems := list(compress_problems(spec)):
        raise SpecError(*problems)
    groups = groups_of(spec.compress)
    check_chain(spec, [step for group in groups for step in group.steps])
    folder = TaskFolder(spec.results_dir, "compress")
    with heeding_sigterm(), Lease(folder.path, say):
        chain = _Chain(spec, folder.path, say)
        return keep_diary(folder, "compress", to_yaml(spec), lambda: chain.run(groups), _kpi)


class _Chain:
    def __init__(self, spec: Spec, folder: Path, say: Callable[[str], None]) -> None:
        self._spec, self._folder, self._say = spec, folder, say
        self._record, self._metric = Record(folder / RECORD), gate_metric(spec).value
        self._measuring = measuring_spec(spec)
        self._measured_on = fingerprint(depends_on(self._measuring, Stage.evaluate))
        self._reference: Entry | None = None

    def run(self, groups: list[Group]) -> CompressReport:
        """All of it."""
        at = _Place()
        if groups[0].steps[0].stage is not Stage.distill:
            self._start(at)
        try:
            for group in groups:
                self._run_group(group, at)
            self._record.entries = {name: self._record.entries[name] for name in self._record.order}
        finally:
            self._write()
        assert at.inputs.student is not None
        entries = [self._record.entries[name] for name in self._record.order]
        return CompressReport(self._folder, entries, self._metric, at.inputs.student)

    def _start(self, at: _Place) -> None:
        """The student that the others are compared with."""
        path = find_checkpoint(self._spec, self._spec.compress.checkpoint, "compress.checkpoint").resolve()
        names = (STUDENT_FILE, HEADS_FILE, DETECTOR_FILE, EMA_FILE)
        files = [path / name for name in names] if path.is_dir() else [path]
        said = fingerprint(*(_digest(file) for file in files if file.exists()))
        entry = self._entry(START, START, said, [])
        entry.outcome = entry.outcome or student_outcome(path)
        self._judge(entry, path)
        self._reference = entry
        gates = self._spec.compress.gates
        if gates.min_kept is not None and entry.kept is None and self._metric in entry.metrics:
            raise self._cannot_judge(entry)
        at.inputs.student, at.made[STUDENT] = path, said
        at.inputs.models[START] = path

    def _run_group(self, group: Group, at: _Place) -> None:
        """Its stages, again with milder settings where too little is kept and the spec allows it."""
        gates, before = self._spec.compress.gates, copy.deepcopy(at)
        changes: list[str] = []
        for attempt in range(gates.retries + 1):
            at.inputs, at.made = copy.deepcopy(before.inputs), copy.deepcopy(before.made)
            for step in group.steps:
                entry = self._run_step(step, at, attempt, changes if step is group.steps[0] else [])
            entry.passed = None
            if gates.min_kept is None or not group.gated:
                return
            if entry.kept is None:
                raise self._cannot_judge(entry)
            entry.passed = entry.kept >= gates.min_kept
            self._write()
            if entry.passed:
                return
            said = (
                f"{self._metric} after {entry.name} is {entry.kept:.1%} of the starting student's, "
                f"and {gates.min_kept:.1%} was asked"
            )
            if gates.on_fail is OnFail.stop:
                hint = "Take a milder setting, a lower min_kept, or on_fail: relax; the same command then goes on."
                raise GateFailed(said, where="compress.gates.min_kept", hint=hint)
            first = group.steps[0]
            left = self._record.entries[first.name].outcome
            assert left is not None
            changes = milder(stage_spec(self._spec, first), first.stage, attempt + 1, Path(left.path))
            if not changes or attempt == gates.retries:
                why = "no retry is left" if changes else f"{first.stage.value} has no (further) milder setting"
                raise GateFailed(f"{said}; {why}", where="compress.gates.min_kept", hint="Take a lower min_kept.")
            self._say(f"{said}: {first.name} again, with {', '.join(changes)}")

    def _run_step(self, step: Step, at: _Place, attempt: int, changes: list[str]) -> Entry:
        """One stage, or what an earlier start left of it."""
        name = f"{step.name}.relaxed{attempt}" if attempt else step.name
        derived = stage_spec(self._spec, step, changes)
        fields = depends_on(derived, step.stage)
        parts = {Stage.engine: ("export",), Stage.evaluate: (STUDENT, "export", "engine")}.get(step.stage, (STUDENT,))
        parent = fingerprint(*(at.made.get(part, "") for part in parts))
        said = fingerprint(step.stage.value, fields, parent)
        entry = self._entry(name, step.stage.value, said, changes, fields)
        folder = TaskFolder(self._folder, name)
        folder.write_experiment(fields)
        if entry.outcome is None or not Path(entry.outcome.path).exists():
            start = time.monotonic()
            try:
                entry.outcome = run_stage(step.stage, placed(derived, step, folder.path, at.inputs, said), self._say)
            finally:
                entry.seconds += time.monotonic() - start
                self._write()
        left = Path(entry.outcome.path)
        if step.changes_student:
            at.inputs.student, at.made[STUDENT] = left, said
            self._judge(entry, left)
        elif step.stage in (Stage.export, Stage.engine):
            at.made[step.stage.value] = said
            at.inputs.onnx = left if step.stage is Stage.export else at.inputs.onnx
        else:
            entry.metrics = entry.outcome.metrics
        if step.changes_student or left.suffix in (".onnx", ".engine"):
            if untrained := entry.outcome.facts.get(UNTRAINED):  # PTQ beside QAT
                at.inputs.models[f"{name}.{UNTRAINED}"] = Path(untrained)
            at.inputs.models[name] = left
        return entry

    def _entry(self, name: str, stage: str, said: str, changes: list[str], fields: str = "") -> Entry:
        """What the record has of a stage, or a new entry where its fields or a stage before it changed."""
        record, entry = self._record, self._record.entries.get(name)
        if entry is None and (self._folder / name).exists():  # of another chain
            _moved_aside(self._folder / name)
        if entry is not None and entry.spec_hash != said:
            folder = TaskFolder(self._folder, name)
            changed = folder.spec_changes(fields) if fields else ["it is another student"]
            why = f"changed: {', '.join(changed)}" if changed else "what comes before it changed"
            self._say(f"{name} starts anew, {why}; what it had left is in {_moved_aside(folder.path).name}")
            entry = None
        elif entry is not None and entry.outcome is not None:
            self._say(f"{name} is done already")
        if entry is None:
            entry = Entry(name, stage, said, changes)
        record.entries[name] = entry
        record.order.append(name)
        self._write()
        return entry

    def _judge(self, entry: Entry, student: Path) -> None:
        """Measure a student, unless it was measured on the same."""
        if entry.metrics_hash != self._measured_on:
            start = time.monotonic()
            entry.metrics = measure(self._measuring, student, self._folder / entry.name)
            entry.metrics_hash, entry.measured_s = self._measured_on, time.monotonic() - start
        self._reference = self._reference or entry
        ours, theirs = entry.metrics.get(self._metric), self._reference.metrics.get(self._metric)
        # A share of zero, or of a negative likeness, says nothing: what is worse would pass.
        entry.kept = ours / theirs if ours is not None and theirs is not None and theirs > 0 else None
        self._write()

    def _cannot_judge(self, entry: Entry) -> SpecError:
        metric, known = self._metric, ", ".join(entry.metrics) or "none"
        theirs = self._reference.metrics.get(metric) if self._reference else None
        if theirs is not None and theirs <= 0:
            return SpecError(
                f"the starting student is worth nothing by this metric: its {metric} is {theirs:.3g}",
                where="compress.gates.metric",
                hint="Train it longer, or take another metric; without min_kept nothing is asked.",
            )
        return SpecError(
            f"nothing is known of {metric} after {entry.name}; measured: {known}",
            where="compress.gates.metric",
            hint="fidelity needs teachers, knn labels in both splits, top1 a student's classifier, mAP a detector.",
        )

    def _write(self) -> None:
        self._record.write(metric=self._metric, min_kept=self._spec.compress.gates.min_kept)


def _moved_aside(folder: Path) -> Path:
    """Give a stage's folder another name: what trained for days is not deleted because a field changed."""
    number = 1
    while (aside := folder.with_name(f"{folder.name}.before{number}")).exists():
        number += 1
    folder.rename(aside)
    return aside


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _kpi(report: CompressReport) -> dict[str, float]:
    return {f"kept/{e.name}": e.kept for e in report.entries if e.kept is not None}
