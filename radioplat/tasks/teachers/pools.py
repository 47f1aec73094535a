"""The tasks ``teachers start``, ``teachers status`` and ``teachers stop`` on the running cluster."""

from __future__ import annotations

from pathlib import Path

from radioplat.cluster.ray_cluster import attached
from radioplat.cluster.resources import teacher_gpus
from radioplat.common import terminal
from radioplat.errors import SpecError
from radioplat.spec.checks.tasks.training_run import check
from radioplat.spec.resolved.teacher import frozen_teachers
from radioplat.spec.schema.root import Spec


def start(spec: Spec) -> None:
    """Start the named pools of a spec.

    Raises:
        RadioplatError: the spec is wrong, no cluster runs, or a pool cannot start.
    """
    from radioplat.teachers.serving.named_pools import start_pools

    if problems := check(spec):
        raise SpecError(*problems)
    teachers = frozen_teachers(spec)
    with attached(spec.cluster.address) as gpus:
        start_pools(teachers, {t.name: teacher_gpus(t.service.num_gpus, gpus) for t in teachers})
        _show()


def status(address: str | None = None) -> None:
    """Show every named pool of the cluster.

    Raises:
        PlacementError: no cluster runs.
    """
    with attached(address):
        _show()


def stop(names: list[str], address: str | None = None) -> None:
    """Stop named pools, all if ``names`` is empty.

    Raises:
        RadioplatError: no pool has this name.
    """
    from radioplat.teachers.serving.named_pools import stop_pools

    with attached(address):
        for stopped in stop_pools(names or None):
            terminal.say(f"stopped {stopped}")


def _show() -> None:
    from radioplat.teachers.serving.named_pools import pool_statuses

    rows = []
    for pool in pool_statuses():
        status = pool.status
        if status is None:
            rows.append([pool.name, pool.teacher, "does not answer", "", "", ""])
            continue
        least, most = status.bounds
        size = f"{status.replicas} of {least}" + (f" to {most}" if most > least else "")
        rows.append(
            [pool.name, pool.teacher, size, str(status.waiting), str(status.forwards), Path(status.weights).name]
        )
    terminal.show_table("teacher pools", ["pool", "teacher", "replicas", "waiting", "forwards", "weights"], rows)
