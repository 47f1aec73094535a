"""``radioplat plan``: check a task without starting it, and list its models, data, memory and length."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from radioplat.errors import Problem, SpecError
from radioplat.spec.loading.load import load_spec
from radioplat.spec.loading.weights_fields import weights_fields
from radioplat.spec.schema.root import Spec
from radioplat.spec.weights.local import hash_problems
from radioplat.tasks.plan.findings import Plan
from radioplat.tasks.plan.next_task import next_task
from radioplat.tasks.plan.tasks import PLANNED, plan_sweep
from radioplat.tasks.shared.find_checkpoint import task_folder
from radioplat.tracking.results import check_local, nearest_folder

SWEEP = "tune"
TASKS = (*PLANNED, SWEEP)


def plan(
    spec: str | Path | Mapping[str, Any] | Spec,
    overrides: Sequence[str] = (),
    *,
    task: str | None = None,
    space: str | Path | Mapping[str, Any] | None = None,
) -> Plan:
    """Check everything that would stop a task, without starting it; nothing is printed.

    It writes what a start would write before it begins: the index of shards, and pretrained weights as a checkpoint.

    Args:
        spec: a YAML file, a mapping of sections, or a :class:`~radioplat.spec.schema.root.Spec`; it is not changed.
        overrides: ``key=value``, applied to it in order.
        task: one of :data:`TASKS`; default: the one that the spec describes.
        space: the search space of ``tune``, a YAML file or a mapping.

    Returns:
        Problems that would refuse the task, those of reading the spec included; and its models, data, memory and
        length as far as they are known. ``radioplat.tasks.plan.show.show`` prints it as the command does.

    Raises:
        SpecError: there is no such task.

    Example:
        >>> planned = radioplat.plan("spec.yaml", ["dataset.batch_size=32"])
        >>> for problem in planned.problems:
        ...     print(problem.where, problem.message, problem.hint)
    """
    if task is not None and task not in TASKS:
        raise SpecError(f"no task is called {task!r}", where="task", hint=f"Tasks: {', '.join(TASKS)}.")
    report = Plan()
    loaded = report.attempt(load_spec, spec, overrides)
    if loaded is None:
        return report
    chosen, why = (task, "") if task else next_task(loaded)
    if why:
        report.facts["task"] = why
    report.attempt(_check_folder, loaded, chosen, report)
    if chosen == SWEEP:
        plan_sweep(loaded, space, report)
    else:
        PLANNED[chosen](loaded, report)
    report.problems = list(dict.fromkeys([*report.problems, *_changed_weights(loaded)]))
    return report


def _check_folder(spec: Spec, task: str, report: Plan) -> None:
    own = getattr(getattr(spec, task, None), "results_dir", None)
    field = f"{task}.results_dir" if own else "results_dir"
    check_local(own or spec.results_dir, field)
    report.free = shutil.disk_usage(nearest_folder(task_folder(spec, task), field)).free
    report.facts["disk"] = f"{report.free / 2**30:.1f} GiB are free in {own or spec.results_dir}"


def _changed_weights(spec: Spec) -> Iterator[Problem]:
    """Yield a problem for each file of fetched weights that is not the one of the lock file."""
    for field in weights_fields(spec):
        if field.value:
            yield from hash_problems(field.value, field.path)
