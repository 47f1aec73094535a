"""``radioplat teachers start|status|stop``: pools that outlive a run and serve several at once."""

from __future__ import annotations

from dataclasses import dataclass

import ray

from radioplat.errors import RadioplatError, SpecError
from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.teachers.serving.pool import NAMESPACE, await_pool_controller, open_pool_controller
from radioplat.teachers.serving.pool_controller import PoolStatus

_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class NamedPool:
    """A running pool: its name and status, None if its controller does not respond."""

    name: str
    teacher: str
    status: PoolStatus | None


def start_pools(teachers: list[ResolvedTeacher], gpus: dict[str, float]) -> list[NamedPool]:
    """Start the pool of every teacher that names one; running pools are left as they are.

    Args:
        gpus: of each replica, by the teacher's name.

    Raises:
        SpecError: no teacher names a pool, or the pool serves another teacher.
        PlacementError, WeightsError: it cannot start.
    """
    named = [teacher for teacher in teachers if teacher.service.pool]
    if not named:
        raise SpecError(
            "no teacher names a pool",
            where="teachers.<name>.pool",
            hint="Set it, e.g. teachers.clip.pool=lab, here and in the runs that are to share it.",
        )
    controllers = [(teacher, open_pool_controller(teacher, gpus[teacher.name])) for teacher in named]
    for teacher, controller in controllers:
        await_pool_controller(controller, teacher.name, teacher.service.start_timeout_s)
    return pool_statuses()


def pool_statuses() -> list[NamedPool]:
    """Return every named pool of the cluster, ordered by name."""
    pools = []
    for full in _names():
        name, _, teacher = full.rpartition("/")
        try:
            controller = ray.get_actor(full, namespace=NAMESPACE)
            status = ray.get(controller.status.remote(), timeout=_TIMEOUT_S)
        except (ValueError, ray.exceptions.RayError):
            status = None
        pools.append(NamedPool(name, teacher, status))
    return pools


def stop_pools(names: list[str] | None) -> list[str]:
    """Stop the pools called ``names``, or with None all of them; return ``pool/teacher`` of each.

    Raises:
        RadioplatError: there is no pool of that name.
    """
    running = _names()
    missing = sorted(set(names or ()) - {full.rpartition("/")[0] for full in running})
    if missing:
        raise RadioplatError(
            f"no pool is called {', '.join(missing)}", hint="radioplat teachers status lists those that run."
        )
    stopped = [full for full in running if names is None or full.rpartition("/")[0] in names]
    for full in stopped:
        ray.kill(ray.get_actor(full, namespace=NAMESPACE))
    return stopped


def _names() -> list[str]:
    actors = ray.util.list_named_actors(all_namespaces=True)
    return sorted(actor["name"] for actor in actors if actor["namespace"] == NAMESPACE and "/" in actor["name"])
