"""Check every node of a pipeline before one starts, as `radioplat plan` checks its task.

A student that another node has not trained yet is known by its structure, which is enough for widths, sizes and heads.
After pruning, low rank, quantization and compression even that depends on the data: what follows these is checked for
contradictions, and wholly when it starts.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from radioplat.errors import Problem, SpecError
from radioplat.launch.preflight.preflight import Level
from radioplat.models.student.architecture import StudentArchitecture
from radioplat.spec.loading.students import student_specs
from radioplat.tasks.compress.outcome import Outcome
from radioplat.tasks.pipeline.dag import STUDENT_OF_SEVERAL, Pipeline, TaskNode, key_of, load_pipeline, of_node
from radioplat.tasks.pipeline.kinds import TASKS, NodeTask, results_of
from radioplat.tasks.pipeline.place import finished_nodes, placed
from radioplat.tasks.pipeline.record import Record
from radioplat.tasks.pipeline.stand_in import write_stand_in
from radioplat.tasks.plan.findings import Plan
from radioplat.tasks.plan.run import plan_run
from radioplat.tasks.plan.tasks import PLANNED

_TRAINING = (NodeTask.distill, NodeTask.train)


def plan_pipeline(source: str | Path | Mapping[str, object], overrides: Sequence[str] = ()) -> Plan:
    """Check a pipeline without starting it; nothing is printed. Arguments as of :func:`~radioplat.pipeline`."""
    report = Plan()
    pipeline = report.attempt(load_pipeline, source, overrides)
    if pipeline is None:
        return report
    record = report.attempt(Record, pipeline.home)
    order = [f"{n.name} ({n.task.value}{', after ' + ', '.join(n.needs) if n.needs else ''})" for n in pipeline.graph]
    report.facts["nodes"] = "; ".join(order)
    if record is not None:
        finished = finished_nodes(pipeline, record)
        if finished:
            report.facts["finished"] = f"{', '.join(finished)}; they do not run again"
        _check(pipeline, finished, Level.plan, report)
    return report


def check_pipeline(pipeline: Pipeline, finished: Mapping[str, Outcome]) -> None:
    """Check all nodes but the finished ones.

    Args:
        finished: their results.

    Raises:
        SpecError: with the problems of all nodes.
    """
    report = Plan()
    _check(pipeline, finished, Level.start, report)
    if report.problems:
        raise SpecError(*report.problems)


def _check(pipeline: Pipeline, finished: Mapping[str, Outcome], level: Level, report: Plan) -> None:
    """Check the nodes in order, and add the findings of each."""
    report.problems += _shared_outputs(pipeline)
    with tempfile.TemporaryDirectory(prefix="pipeline") as scratch:
        known: dict[str, Path] = {}
        for node in pipeline.graph:
            if node.name in finished:
                known |= results_of(node.name, finished[node.name])
                continue
            findings = Plan()
            made = findings.attempt(_check_node, pipeline, node, known, level, Path(scratch), findings)
            if made and not findings.problems:
                folder = Path(scratch) / "students"
                known |= {key: write_stand_in(architecture, folder / key) for key, architecture in made.items()}
            report.include(_named(findings, node, f"{Path(scratch) / 'students'}{os.sep}"))
    report.problems = list(dict.fromkeys(report.problems))


def _named(findings: Plan, node: TaskNode, stand_ins: str) -> Plan:
    """Return the findings of a node with its name before each of them.

    Args:
        stand_ins: folder of the stand-ins, in whose place the messages name the nodes.
    """
    name = node.name
    problems = [
        dataclasses.replace(problem, message=problem.message.replace(stand_ins, "the student of nodes."))
        for problem in findings.problems
    ]
    return Plan(
        problems=[of_node(node, problem) for problem in problems],
        warnings=[f"{name}: {warning.replace(stand_ins, 'the student of nodes.')}" for warning in findings.warnings],
        models=[dataclasses.replace(line, name=f"{name}: {line.name}") for line in findings.models],
        sources=[dataclasses.replace(line, path=f"{name}: {line.path}") for line in findings.sources],
        facts={
            f"{name}: {title}": fact.replace(stand_ins, "the student of nodes.")
            for title, fact in findings.facts.items()
        },
    )


def _check_node(
    pipeline: Pipeline, node: TaskNode, known: Mapping[str, Path], level: Level, scratch: Path, report: Plan
) -> dict[str, StudentArchitecture]:
    """Add the findings of one node to ``report``; as much as can be known before the nodes that it needs have run.

    Returns:
        The structures of the students that it will train, by :func:`~radioplat.tasks.pipeline.dag.key_of`.
    """
    spec = pipeline.fields(node)
    spec.results_dir = str(pipeline.home / node.name)  # the one in the node's spec is not used
    contradictions = list(TASKS[node.task].problems(spec))
    if any(name not in known for name in node.reads):
        report.problems += [problem for problem in contradictions if "nodes." not in str(problem)]
        unknown = ", ".join(name for name in node.reads if name not in known)
        report.facts["checks"] = f"for contradictions; wholly when {unknown} is done"
        return {}
    # In a folder of its own: what earlier starts left is the business of the node's start.
    spec = placed(pipeline, node, node.spec(lambda name, product: str(known[key_of(name, product)])), "")
    spec.dataset.index_dir = spec.dataset.index_dir or str(Path(spec.results_dir) / "index")
    spec.results_dir, spec.train.checkpoint_dir = str(scratch / node.name), None
    if node.task not in _TRAINING:
        PLANNED[node.task.value](spec, report)
        return {}
    report.include(plan_run(spec, node.task.value, Path(spec.results_dir) / node.task.value, level))
    if not spec.distill.students or node.task is not NodeTask.distill:
        return {node.name: report.architecture} if report.architecture else {}
    made: dict[str, StudentArchitecture] = {}
    for name, own in student_specs(spec).items():
        planned = plan_run(own, node.task.value, Path(own.results_dir) / node.task.value, Level.data)
        report.problems += planned.problems
        if planned.architecture:
            made.setdefault(node.name, planned.architecture)  # the first one is the student of the node
            made[key_of(node.name, f"{STUDENT_OF_SEVERAL}{name}")] = planned.architecture
    return made


def _shared_outputs(pipeline: Pipeline) -> Iterator[Problem]:
    """Yield a problem for each file that two nodes would write."""
    writers: dict[str, str] = {}
    for node in pipeline.graph:
        spec = pipeline.fields(node)
        for where, path in TASKS[node.task].outputs(spec).items():
            other = writers.setdefault(str(Path(path).absolute()), node.name) if path else node.name
            if other != node.name:
                hint = "Leave it out, and each writes into its own folder."
                yield of_node(node, Problem(f"{other} would write {path}, too", where, hint))
