"""Health status of replicas; importing this does not import torch, as :mod:`radioplat.teachers.serving.replica`
does."""

from __future__ import annotations

from dataclasses import dataclass

import ray

_TIMEOUT_S = 10.0  # maximum time to wait for a replica's reply


@dataclass(frozen=True)
class ReplicaHealth:
    """Health status of a replica.

    Attributes:
        process: its process id; another one means that it has been restarted.
        node: Ray's id of its node.
        waiting: number of open requests.
        loaded: whether it has its weights.
        busy_s: seconds since the current forward started; 0 if none runs.
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
    """Request the health status of ``replica``; None if its process does not respond."""
    try:
        return ray.get(replica.health.remote(), timeout=_TIMEOUT_S)
    except (ray.exceptions.GetTimeoutError, ray.exceptions.RayActorError):
        return None
