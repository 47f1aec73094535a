"""How a replica is, as others see it; who asks imports no torch, as :mod:`radioplat.teachers.serving.replica` does."""

from __future__ import annotations

from dataclasses import dataclass

import ray

_PATIENCE_S = 10.0  # for an answer of a replica


@dataclass(frozen=True)
class ReplicaHealth:
    """How a replica is.

    Attributes:
        process: its process id; another one means that it has been restarted.
        node: Ray's id of its node.
        waiting: requests that are not answered yet.
        loaded: whether it has its weights.
        busy_s: seconds since the forward that runs now began; 0 where none runs.
        forwards: how many it has run.
        shapes: of all its forwards.
    """

    process: int
    node: str
    waiting: int
    loaded: bool
    busy_s: float
    forwards: int
    shapes: frozenset[tuple[int, ...]]


def health_of(replica: ray.actor.ActorHandle) -> ReplicaHealth | None:
    """How ``replica`` is; None where its process does not answer."""
    try:
        return ray.get(replica.health.remote(), timeout=_PATIENCE_S)
    except (ray.exceptions.GetTimeoutError, ray.exceptions.RayActorError):
        return None
