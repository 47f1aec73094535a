"""The task ``compress``: run stages in order, each on the result of the one before, with gates between them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from radioplat.common.hashing import file_hash
from radioplat.common.sigterm import handling_sigterm
from radioplat.common.terminal import note
from radioplat.errors import RadioplatError, SpecError
from radioplat.evaluation.measure.registry import objective_needs
from radioplat.models.detectors.checkpoint import DETECTOR_FILE
from radioplat.models.student.checkpoint import HEADS_FILE, STUDENT_FILE
from radioplat.models.weights.model_format import EMA_FILE
from radioplat.spec.loading.load import load_spec, to_yaml
from radioplat.spec.schema.compress import OnFail, Stage
from radioplat.spec.schema.root import Spec
from radioplat.tasks.compress.chain_record import Entry, Record
from radioplat.tasks.compress.definition import Inputs, Product
from radioplat.tasks.compress.derive import check_chain, place, stage_spec
from radioplat.tasks.compress.groups import Group, StageNode, compress_problems, graph_of, groups_of
from radioplat.tasks.compress.outcome import student_outcome
from radioplat.tasks.compress.stages import STAGES, UNTRAINED
from radioplat.tasks.compress.tables import tables_of
from radioplat.tasks.evaluate.gate_metrics import gate_metric, gate_spec, measure
from radioplat.tasks.graph.aside import moved_aside
from radioplat.tasks.graph.fingerprint import depends_on, fingerprint, hashed_fields
from radioplat.tasks.graph.schedule import run_graph
from radioplat.tasks.shared.find_checkpoint import find_checkpoint
from radioplat.tracking.lease import Lease
from radioplat.tracking.report.page import write_report
from radioplat.tracking.results import TaskFolder
from radioplat.tracking.task_log import log_task

RECORD, PAGE, START = "compress.json", "report.html", "00_start"


class GateFailed(RadioplatError):
    """The student after a stage has less than ``compress.gates.min_kept`` of the starting student's metric."""


@dataclass(frozen=True)
class CompressReport:
    """The result of a chain.

    Attributes:
        folder: of the chain, with a folder for each stage.
        entries: every stage and retry, in order; the first is the starting student.
        metric: the metric that the gates compare.
        student: the last student, a checkpoint folder.
        report: path of ``report.html``.
    """

    folder: Path
    entries: list[Entry]
    metric: str
    student: Path
    report: Path


def compress(
    spec: str | Path | Mapping[str, Any] | Spec,
    overrides: Sequence[str] = (),
    *,
    say: Callable[[str], None] = note,
) -> CompressReport:
    """Run ``compress.stages``; called again, it continues where it stopped.

    Args:
        spec: a YAML file, a mapping of sections, or a :class:`~radioplat.spec.schema.root.Spec`; it is not changed.
        overrides: ``key=value``, applied to it in order.
        say: called with each message for the user.

    Returns:
        The last student at ``student``, and each stage with its size, cost and metrics in ``entries``; the page with
        their tables at ``report``.

    Raises:
        SpecError: the order of the stages is impossible, or a stage's fields contradict each other.
        GateFailed: too much quality was lost, and there is no (further) milder setting.
        RadioplatError: as a stage's task does.
        Stopped: on SIGTERM; a stage that trains has saved a checkpoint.

    Example:
        >>> result = radioplat.compress("spec.yaml", ["compress.stages=[prune,retrain,ptq,export,engine]"])
        >>> result.entries[-1].outcome.path
        'results/compress/04_engine/student.engine'
    """
    spec = load_spec(spec, overrides)
    groups = checked_groups(spec)
    folder = TaskFolder(spec.results_dir, "compress")
    with handling_sigterm(), Lease(folder.path, say):
        chain = _Chain(spec, folder.path, say)
        return log_task(folder, "compress", to_yaml(spec), lambda: chain.run(groups), _kpi)


def checked_groups(spec: Spec) -> list[Group]:
    """Return the stages in order, after the check of the spec of each.

    Raises:
        SpecError: with the problems of all stages.
    """
    if problems := list(compress_problems(spec)):
        raise SpecError(*problems)
    groups = groups_of(spec.compress)
    check_chain(spec, [step for group in groups for step in group.steps])
    return groups


class _Chain:
    """The client of the chain's graph, and its runner: one stage after the other, in this process."""

    def __init__(self, spec: Spec, folder: Path, say: Callable[[str], None]) -> None:
        self._spec, self._folder, self._say = spec, folder, say
        self._record, self._metric = Record(folder / RECORD), gate_metric(spec)
        self._measuring = gate_spec(spec)
        self._measured_on = fingerprint(hashed_fields(self._measuring, STAGES[Stage.evaluate].depends_on))
        self._reference: Entry | None = None
        self._specs: dict[str, Spec] = {}  # of the stages, by their names, before their paths are set
        self._ended: list[StageNode] = []

    def run(self, groups: list[Group]) -> CompressReport:
        """Run all groups."""
        first = "" if groups[0].steps[0].stage is Stage.distill else START
        self._graph = graph_of(groups, first)
        try:
            run_graph(self._graph, self, self)
            self._record.entries = {name: self._record.entries[name] for name in self._record.order}
        finally:
            self._write()
        entries = [self._record.entries[name] for name in self._record.order]
        tables = tables_of(entries, self._metric)
        page = write_report(self._folder / PAGE, title="Compression", tables=tables)
        student = self._inputs(list(self._graph)).latest[Product.student]
        return CompressReport(self._folder, entries, self._metric, student, page)

    def is_done(self, node: StageNode) -> bool:
        """Find or begin the entry of a stage; return whether an earlier run has finished it."""
        if node.step is None:
            self._start()
            return True
        derived = stage_spec(self._spec, node.step, node.changes)
        definition = node.step.definition
        fields = depends_on(derived, definition.depends_on)
        parents = fingerprint(*(self._record.entries[name].spec_hash if name else "" for name in node.reads))
        stage = node.step.stage.value
        spec_hash = fingerprint(stage, hashed_fields(derived, definition.depends_on), parents)
        entry = self._entry(node.name, stage, spec_hash, list(node.changes), fields)
        TaskFolder(self._folder, node.name).write_experiment(fields)
        self._specs[node.name] = derived
        return entry.outcome is not None and Path(entry.outcome.path).exists()

    def fits(self, node: StageNode) -> bool:
        """Return whether no stage runs."""
        return not self._ended

    def start(self, node: StageNode) -> None:
        """Run a stage to its end."""
        assert node.step is not None
        entry, definition = self._record.entries[node.name], node.step.definition
        self._say(f"{node.name} starts")
        start = time.monotonic()
        inputs = self._inputs(self._graph.before(node.name))
        placed = place(self._specs[node.name], node.step, self._folder / node.name, inputs, entry.spec_hash)
        try:
            entry.outcome = definition.run(placed, self._say)
        finally:
            entry.seconds += time.monotonic() - start
            self._write()
        self._say(f"{node.name} is done after {entry.seconds:.0f} s: {entry.outcome.path}")
        self._ended.append(node)

    def ended(self) -> list[tuple[StageNode, BaseException | None]]:
        """Return the stage that has run."""
        ended, self._ended = self._ended, []
        return [(node, None) for node in ended]

    def on_done(self, node: StageNode) -> None:
        """Measure the student of a stage, and judge the last one of a group."""
        entry = self._record.entries[node.name]
        assert entry.outcome is not None
        if node.step is None:
            return
        if node.step.definition.changes_student:
            self._judge(entry, Path(entry.outcome.path))
        elif node.step.definition.product is Product.figures:
            entry.metrics = entry.outcome.metrics
        if node.step is node.group.steps[-1]:
            self._pass_gate(node, entry)

    def on_failure(self, node: StageNode, error: BaseException) -> None:
        """End the chain: every later stage needs this one."""
        raise error

    def _start(self) -> None:
        """Measure the student that the others are compared with."""
        path = find_checkpoint(self._spec, self._spec.compress.checkpoint, "compress.checkpoint").resolve()
        names = (STUDENT_FILE, HEADS_FILE, DETECTOR_FILE, EMA_FILE)
        files = [path / name for name in names] if path.is_dir() else [path]
        content = fingerprint(*(file_hash(file) for file in files if file.exists()))
        entry = self._entry(START, START, content, [])
        entry.outcome = entry.outcome or student_outcome(path)
        self._judge(entry, path)
        self._reference, self._start_path = entry, path
        gates = self._spec.compress.gates
        if gates.min_kept is not None and entry.kept is None and self._metric in entry.metrics:
            raise self._cannot_judge(entry)

    def _pass_gate(self, node: StageNode, entry: Entry) -> None:
        """Judge a group after its last stage; if it fails and the spec allows it, a retry takes its place."""
        gates, group, first = self._spec.compress.gates, node.group, node.group.steps[0]
        entry.passed = None
        if gates.min_kept is None or not group.gated:
            return
        if entry.kept is None:
            raise self._cannot_judge(entry)
        entry.passed = entry.kept >= gates.min_kept
        self._write()
        if entry.passed:
            return
        message = (
            f"{self._metric} after {entry.name} is {entry.kept:.1%} of the starting student's, "
            f"and {gates.min_kept:.1%} is required"
        )
        if gates.on_fail is OnFail.stop:
            hint = "Take a milder setting, a lower min_kept, or on_fail: relax; the same command then continues."
            raise GateFailed(message, where="compress.gates.min_kept", hint=hint)
        outcome, milder = self._record.entries[first.name].outcome, first.definition.milder
        assert outcome is not None
        attempt = node.attempt + 1
        changes = milder(stage_spec(self._spec, first), attempt, Path(outcome.path)) if milder else []
        if not changes or attempt > gates.retries:
            why = "no retry is left" if changes else f"{first.stage.value} has no (further) milder setting"
            raise GateFailed(f"{message}; {why}", where="compress.gates.min_kept", hint="Take a lower min_kept.")
        self._say(f"{message}: {first.name} again, with {', '.join(changes)}")
        nodes = [each for each in self._graph if each.group is group]
        names = [f"{step.name}.relaxed{attempt}" for step in group.steps]
        self._graph.put(
            {
                each.name: replace(each, name=name, attempt=attempt, changes=tuple(changes if i == 0 else ()))
                for i, (each, name) in enumerate(zip(nodes, names, strict=True))
            }
        )

    def _inputs(self, nodes: Sequence[StageNode]) -> Inputs:
        """Return the results of finished stages, in order."""
        inputs = Inputs()
        for node in nodes:
            outcome = self._record.entries[node.name].outcome
            assert outcome is not None
            if node.step is None:
                inputs.latest[Product.student] = inputs.models[START] = self._start_path
                continue
            path, definition = Path(outcome.path), node.step.definition
            inputs.latest[definition.product] = path
            if definition.changes_student or path.suffix in (".onnx", ".engine"):
                if untrained := outcome.facts.get(UNTRAINED):  # so that PTQ is evaluated as well as QAT
                    inputs.models[f"{node.name}.{UNTRAINED}"] = Path(untrained)
                inputs.models[node.name] = path
        return inputs

    def _entry(self, name: str, stage: str, spec_hash: str, changes: list[str], fields: str = "") -> Entry:
        """Return the recorded entry of a stage, or a new one if its fields or a stage before it changed."""
        record, entry = self._record, self._record.entries.get(name)
        if entry is None and (self._folder / name).exists():  # of another chain
            moved_aside(self._folder / name)
        if entry is not None and entry.spec_hash != spec_hash:
            folder = TaskFolder(self._folder, name)
            changed = folder.spec_changes(fields) if fields else ["another student"]
            why = f"changed: {', '.join(changed)}" if changed else "a stage before it changed"
            self._say(f"{name} runs again, {why}; its old result is in {moved_aside(folder.path).name}")
            entry = None
        elif entry is not None and entry.outcome is not None:
            self._say(f"{name} is done already")
        if entry is None:
            entry = Entry(name, stage, spec_hash, changes)
        record.entries[name] = entry
        record.order.append(name)
        self._write()
        return entry

    def _judge(self, entry: Entry, student: Path) -> None:
        """Measure a student, unless it was measured with the same settings."""
        if entry.metrics_hash != self._measured_on:
            self._say(f"{entry.name} is measured on dataset.val_dataset")
            start = time.monotonic()
            entry.metrics = measure(self._measuring, student, self._folder / entry.name)
            entry.metrics_hash, entry.measured_s = self._measured_on, time.monotonic() - start
            value = entry.metrics.get(self._metric)
            figure = "is not measured" if value is None else f"is {value:.4g}"
            self._say(f"{entry.name} is measured after {entry.measured_s:.0f} s: {self._metric} {figure}")
        self._reference = self._reference or entry
        value, start_value = entry.metrics.get(self._metric), self._reference.metrics.get(self._metric)
        # A share of zero or of a negative similarity is meaningless: a worse student would pass.
        entry.kept = value / start_value if value is not None and start_value is not None and start_value > 0 else None
        self._write()

    def _cannot_judge(self, entry: Entry) -> SpecError:
        metric, known = self._metric, ", ".join(entry.metrics) or "none"
        start_value = self._reference.metrics.get(metric) if self._reference else None
        if start_value is not None and start_value <= 0:
            return SpecError(
                f"no share of the starting student's {metric} can be computed: it is {start_value:.3g}",
                where="compress.gates.metric",
                hint="Train it longer, or take another metric; without min_kept there is no gate.",
            )
        return SpecError(
            f"{metric} was not measured after {entry.name}; measured: {known}",
            where="compress.gates.metric",
            hint=f"{objective_needs()}, mAP needs a detector.",
        )

    def _write(self) -> None:
        self._record.write(metric=self._metric, min_kept=self._spec.compress.gates.min_kept)


def _kpi(report: CompressReport) -> dict[str, float]:
    return {f"kept/{e.name}": e.kept for e in report.entries if e.kept is not None}
