"""The task ``pipeline``: a graph of tasks, each run once what it needs is done; a rerun repeats no finished one."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from radioplat.cluster.ray_cluster import attached, uses_ray
from radioplat.common.sigterm import forwarding_sigterm, handling_sigterm, install_handler
from radioplat.common.terminal import note
from radioplat.errors import Problem, RadioplatError, Stopped
from radioplat.spec.loading.load import spec_tree
from radioplat.spec.schema.cluster import ClusterMode
from radioplat.spec.schema.root import Spec
from radioplat.tasks.graph.aside import moved_aside
from radioplat.tasks.graph.fingerprint import depends_on
from radioplat.tasks.graph.schedule import run_graph
from radioplat.tasks.pipeline.checks import check_pipeline
from radioplat.tasks.pipeline.costs import add_costs, last_step
from radioplat.tasks.pipeline.dag import Pipeline, TaskNode, key_of, load_pipeline
from radioplat.tasks.pipeline.kinds import TASKS, results_of
from radioplat.tasks.pipeline.local_runner import LocalRunner
from radioplat.tasks.pipeline.place import begins_anew, fingerprint_of, finished_nodes, placed
from radioplat.tasks.pipeline.record import NodeEntry, Record, State
from radioplat.tasks.pipeline.report import write_pages
from radioplat.tasks.pipeline.worker import RESULT, Job, read_result
from radioplat.tasks.shared.held_lease import wait_for_leases
from radioplat.tracking.lease import Lease
from radioplat.tracking.results import TaskFolder
from radioplat.tracking.task_log import log_task

TASK = "pipeline"
PROGRESS_S = 2.0  # between two updates of the progress in pipeline.json
SAY_S = 60.0  # between two lines about it


class NodesFailed(RadioplatError):
    """Nodes of a pipeline have failed; all others that could run are done."""


@dataclass(frozen=True)
class PipelineReport:
    """Result of a pipeline.

    Attributes:
        folder: ``results_dir``, with a folder for each node.
        nodes: each node's state, result, time and cost, in the order in which they may run.
        report: path of ``report.html``.
    """

    folder: Path
    nodes: list[NodeEntry]
    report: Path

    @property
    def results(self) -> dict[str, Path]:
        """The path of each node's result: a student's checkpoint folder, an ONNX file, an engine, a report."""
        return {entry.name: Path(entry.outcome.path) for entry in self.nodes if entry.outcome}


def pipeline(
    dag: str | Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    say: Callable[[str], None] = note,
) -> PipelineReport:
    """Run a pipeline: distillations and other tasks, in which a student may be another's teacher or start.

    Called again, it continues where it stopped: no finished node runs again, and a changed one runs again with all that
    need it. On a Ray cluster nodes run side by side as far as they fit; else one after the other, each in a process.

    Args:
        dag: a YAML file, or a mapping: ``results_dir``, and ``nodes`` by name with ``task``, ``spec``, ``changes`` and
            ``needs``.
        overrides: ``key=value``: ``results_dir`` and ``concurrent`` of the pipeline, ``nodes.NAME.FIELD`` of the spec
            of one node, ``FIELD`` of the specs of all nodes.
        say: called with each message for the user.

    Returns:
        Each node with its state, result, time and cost, and the paths of the results by node in ``results``.

    Raises:
        SpecError: the graph or the spec of a node is wrong, or models do not fit; nothing has started then.
        NodesFailed: nodes have failed; what does not need them is done.
        Stopped: on SIGTERM, after nodes that train have saved; the same command continues.

    Example:
        >>> result = radioplat.pipeline("dag.yaml", ["nodes.proxy.train.num_epochs=2"])
        >>> student = radioplat.load_student(result.results["student"])
    """
    loaded = load_pipeline(dag, overrides)
    folder = TaskFolder(loaded.home, TASK, loaded.home)
    with handling_sigterm(), Lease(folder.path, say):
        return log_task(folder, TASK, loaded.text, lambda: _Run(loaded, say).run(), _kpi)


class _Run:
    """One start of a pipeline: the client of its graph."""

    def __init__(self, loaded: Pipeline, say: Callable[[str], None]) -> None:
        self._pipeline, self._say = loaded, say
        self._record = Record(loaded.home)
        self._begins: dict[str, float] = {}  # of the running nodes, by name: until when their time is counted
        self._updated, self._spoke = 0.0, time.monotonic()

    def run(self) -> PipelineReport:
        """Check all nodes, then run them."""
        graph, record = self._pipeline.graph, self._record
        finished = finished_nodes(self._pipeline, record)
        if finished:
            self._say(f"{self._pipeline.home}: {len(finished)} of {len(graph)} nodes are done already")
        check_pipeline(self._pipeline, finished)
        known = record.entries
        record.entries = {n.name: known.get(n.name) or NodeEntry(n.name, n.task.value, list(n.needs)) for n in graph}
        self._start = record.begin()
        for node in graph:
            entry = record.entries[node.name]
            entry.task, entry.needs = node.task.value, list(node.needs)
            if node.name in finished:
                entry.state = State.done  # also after a start that was killed before it came to the node
                if not entry.steps:
                    entry.step, entry.steps = last_step(self._pipeline.home / node.name)
                continue
            entry.state = State.waiting
            if begins_anew(self._pipeline, node, record, finished):
                entry.step = entry.steps = 0  # what was trained before does not count for the progress
        record.write()
        if len(finished) < len(graph):
            self._run_nodes()
        entries = list(record.entries.values())
        page = write_pages(self._pipeline, record)
        failed = [entry for entry in entries if entry.state is State.failed]
        if failed:
            hint = "The same command runs it again, and then what needs it."
            problems = [Problem(entry.reason.rstrip("."), f"nodes.{entry.name}", hint) for entry in failed]
            raise NodesFailed(*problems)
        return PipelineReport(self._pipeline.home, entries, page)

    def _run_nodes(self) -> None:
        with self._runner() as runner:
            try:
                with forwarding_sigterm(runner.stop):
                    run_graph(self._pipeline.graph, self, runner)
                if runner.stopping:
                    raise Stopped
            finally:
                runner.close()
                self._record.write()

    @contextlib.contextmanager
    def _runner(self) -> Iterator[Any]:
        """Yield what runs the nodes: the cluster, if one is there and a node may use it, else processes here."""
        specs = {node.name: self._pipeline.fields(node) for node in self._pipeline.graph}
        if (cluster := next((spec for spec in specs.values() if _may_join(spec)), None)) is None:
            yield LocalRunner(self._pipeline.concurrent or 1, self._job, self._watch)
            return
        from radioplat.tasks.pipeline.ray_runner import RayRunner

        with attached(cluster.cluster.address):
            install_handler()  # ray.init has set its own
            yield RayRunner(self._pipeline.home, self._pipeline.concurrent, specs, self._job, self._watch)

    def is_done(self, node: TaskNode) -> bool:
        """Find the entry of a node whose needs are done, or begin it anew; return whether it is finished."""
        entry, folder = self._record.entries[node.name], self._pipeline.home / node.name
        now = fingerprint_of(self._pipeline, node, self._record)
        fields = depends_on(self._pipeline.fields(node), TASKS[node.task].depends_on)
        task_folder = TaskFolder(self._pipeline.home, node.name)
        if entry.fingerprint != now:
            if any(path.name != "index" for path in folder.iterdir()):  # the checks have made the index
                changed = task_folder.spec_changes(fields)
                why = f"changed: {', '.join(changed)}" if changed else "a node that it needs has another result"
                if not entry.fingerprint:
                    why = "its folder is of another pipeline"
                wait_for_leases(folder, self._say)  # its process may still save, after a kill of the command
                self._say(f"{node.name} begins anew, {why}; what was there is in {moved_aside(folder).name}")
            entry = NodeEntry(node.name, node.task.value, list(node.needs), now)
            self._record.entries[node.name] = entry
            task_folder = TaskFolder(self._pipeline.home, node.name)
        task_folder.write_experiment(fields)
        self._record.write()
        if entry.outcome is None:
            self._adopt(entry)  # its process may have ended after the command was killed
        return entry.outcome is not None and Path(entry.outcome.path).exists()

    def on_done(self, node: TaskNode) -> None:
        """Record the result of a node."""
        entry = self._record.entries[node.name]
        started = self._begins.pop(node.name, None)
        if started is None:
            entry.state = State.done
            self._record.write()
            return
        entry.seconds += time.monotonic() - started
        self._adopt(entry)
        assert entry.outcome is not None
        self._record.write()
        done = sum(each.state is State.done for each in self._record.entries.values())
        of_all = f"{done} of {len(self._record.entries)}"
        self._say(f"{node.name} is done after {entry.seconds:.0f} s ({of_all}): {entry.outcome.path}")
        write_pages(self._pipeline, self._record)

    def on_failure(self, node: TaskNode, error: BaseException) -> None:
        """Record why a node has ended; what needs it does not start, the others go on."""
        entry = self._record.entries[node.name]
        entry.seconds += time.monotonic() - self._begins.pop(node.name)
        add_costs(entry, self._pipeline.home / node.name)
        if isinstance(error, Stopped):
            entry.state = State.stopped
            self._say(f"{node.name} is stopped; the same command continues it")
        else:
            entry.state, entry.reason = State.failed, str(error)
            later = [each.name for each in self._pipeline.graph.after(node.name)]
            for name in later:
                self._record.entries[name].state = State.blocked
            blocked = f"; {', '.join(later)} cannot start" if later else ""
            self._say(f"{node.name} failed: {error}{blocked}")
        self._record.write()

    def _job(self, node: TaskNode) -> Job:
        """Begin a node, and return its job."""
        entry, folder = self._record.entries[node.name], self._pipeline.home / node.name
        paths: dict[str, Path] = {}
        for name in node.needs:
            if outcome := self._record.entries[name].outcome:
                paths |= results_of(name, outcome)
        derived = node.spec(lambda name, product: str(paths[key_of(name, product)]))
        spec = placed(self._pipeline, node, derived, entry.fingerprint)
        (folder / RESULT).unlink(missing_ok=True)
        entry.state, entry.reason, entry.outcome, entry.files = State.running, "", None, {}
        entry.starts.append(self._start)
        self._begins[node.name] = time.monotonic()
        self._record.write()
        self._say(f"{node.name} starts ({node.task.value})")
        return Job(node.name, node.task.value, str(folder), spec_tree(spec), entry.fingerprint, str(Path.cwd()))

    def _adopt(self, entry: NodeEntry) -> None:
        """Take the result that the node's process has written, if there is one."""
        folder = self._pipeline.home / entry.name
        result = read_result(folder, entry.fingerprint)
        if result is None or result.outcome is None:
            return
        entry.state, entry.reason = State.done, ""
        entry.outcome, entry.files = result.outcome, result.files or {}
        add_costs(entry, folder)

    def _watch(self) -> None:
        """Update the progress of the running nodes."""
        now = time.monotonic()
        if now - self._updated < PROGRESS_S:
            return
        self._updated, changed = now, False
        running = [self._record.entries[name] for name in self._begins]
        for entry in running:
            entry.seconds += now - self._begins[entry.name]  # also of a start that is killed
            self._begins[entry.name] = now
            steps = last_step(self._pipeline.home / entry.name)
            changed |= steps != (entry.step, entry.steps)
            entry.step, entry.steps = steps
        if changed:
            self._record.write()
        if changed and now - self._spoke >= SAY_S:
            self._spoke = now
            parts = ", ".join(f"{e.name} at step {e.step} of {e.steps}" for e in running if e.steps)
            self._say(f"{self._record.progress:.0%} of the pipeline: {parts}")


def _may_join(spec: Spec) -> bool:
    """Return whether a cluster runs that a node may use."""
    if spec.cluster.mode is ClusterMode.local:
        return False
    one = replace(spec.train, num_gpus=1, num_nodes=1, min_workers=None, max_workers=None)
    return uses_ray(replace(spec, train=one, cluster=replace(spec.cluster, mode=ClusterMode.auto)))


def _kpi(report: PipelineReport) -> dict[str, float]:
    done = float(sum(entry.state is State.done for entry in report.nodes))
    return {"nodes": float(len(report.nodes)), "done": done} | Record(report.folder).totals()
