"""The plan of a run of several students: the steps before the start of each, and what a worker holds of all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from radioplat.cluster.resources import demand_of, shortages
from radioplat.common import terminal
from radioplat.errors import Problem, SpecError
from radioplat.launch.members import unlike
from radioplat.launch.preflight.memory import MEMORY
from radioplat.launch.preflight.preflight import Level, Preflight
from radioplat.launch.preflight.steps import take_steps
from radioplat.spec.checks.teaching.students import students_problems
from radioplat.spec.loading.students import STUDENTS, own_problem, student_specs
from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.spec.schema.cluster import Placement, Transport
from radioplat.spec.schema.distill import StudentPlacement
from radioplat.spec.schema.root import Spec
from radioplat.tasks.plan.findings import Plan
from radioplat.tasks.plan.run import plan_of


def plan_students(spec: Spec, command: str, level: Level) -> Plan:
    """Take the steps before the start of each student of ``spec``; problems are returned, not raised."""
    problems = list(students_problems(spec))
    try:
        specs = {} if problems else student_specs(spec)
    except SpecError as error:
        problems += error.problems
        specs = {}
    prepared = {
        name: take_steps(Preflight(own, command, Path(own.results_dir) / command, level)) for name, own in specs.items()
    }
    whole = Plan(problems=problems)
    for place, (name, one) in enumerate(prepared.items()):
        student, own = spec.distill.students[place], plan_of(one)
        whole.problems += [own_problem(student, place, problem) for problem in own.problems]
        whole.warnings += [
            f"{name}: {line}" for line in own.warnings if line not in {w.partition(": ")[2] for w in whole.warnings}
        ]
        models = [replace(line, name=name) if line.name == "student" else line for line in own.models]
        listed = {line.name for line in whole.models}
        whole.models += [line for line in models if line.name not in listed]
        whole.sources = whole.sources or own.sources
        whole.facts = {**own.facts, **whole.facts}
        whole.facts.pop(MEMORY, None)
    if prepared and not whole.problems and level >= Level.data:
        whole.problems += unlike([one.run() for one in prepared.values()], list(prepared))
    whole.models.sort(key=lambda line: line.name not in prepared)  # the students first
    if spec.distill.placement is StudentPlacement.spread:
        _add_groups(whole, prepared)
    else:
        _add_memory(whole, list(prepared.values()))
    return whole


def _add_groups(whole: Plan, prepared: dict[str, Preflight]) -> None:
    """Compare what all groups of workers need with what the cluster has, and list the memory of a GPU by student."""
    facts = {name: one.facts[MEMORY] for name, one in prepared.items() if MEMORY in one.facts}
    if facts:
        whole.facts[MEMORY] = "; ".join(f"{name}: {fact}" for name, fact in facts.items())
    first = next(iter(prepared.values()), None)
    if first is None or first.resources is None or first.models is None or whole.problems:
        return
    outer = [teacher for teacher in first.models.teachers if not teacher.inside]
    whole.warnings += [
        f"teacher {teacher.name} computes everything for each of {len(prepared)} students: {why}"
        for teacher in outer
        if (why := _not_shared(teacher))
    ]
    demand = demand_of(first.spec, outer, first.resources.gpus > 0, groups=len(prepared))
    hint = f"Each of {len(prepared)} students has workers of its own: add nodes, or set distill.placement: together."
    whole.problems += [
        Problem(problem.message, "distill.placement", hint) for problem in shortages(demand, first.resources)
    ]


def _not_shared(teacher: ResolvedTeacher) -> str:
    """Return why groups of workers do not share a teacher's answers; empty if they do."""
    service, field = teacher.service, f"teachers.{teacher.name}"
    if service.placement is Placement.inline:
        return f"{field}.placement is inline"
    if service.transport is Transport.nixl:
        return f"{field}.transport is nixl, whose answers are not kept"
    return f"{field}.recent_bytes is 0" if service.recent_bytes == 0 else ""


def _add_memory(whole: Plan, prepared: list[Preflight]) -> None:
    """Add up the memory of a worker's GPU, where there are GPUs, and warn if one lacks it."""
    each = [one.worker_memory for one in prepared if one.worker_memory is not None]
    if not each:
        return
    trained, most = sum(one.trained for one in each), max(one.activations for one in each)
    total = trained + max(one.teachers + one.waiting for one in each) + most
    whole.facts[MEMORY] = (
        f"{terminal.size(trained)} for what is trained of {len(each)} students, "
        f"{terminal.size(max(one.teachers for one in each))} for teachers, "
        f"{terminal.size(max(one.waiting for one in each))} for micro-batches, {terminal.size(most)} for the "
        "activations of one student: they compute in turn"
    )
    has = min((one.has for one in each if one.has), default=0)
    if has and total > has:
        whole.warnings.append(
            f"{STUDENTS}: a worker needs more than {terminal.size(total)} for {len(each)} students, and a GPU has "
            f"at most {terminal.size(has)}: raise train.zero_stage, set train.offload, or give each student "
            "workers of its own with distill.placement: spread"
        )
