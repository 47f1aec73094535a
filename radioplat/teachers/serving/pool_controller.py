"""The actor that manages the replicas of one teacher: starts, scales and restarts them.

It computes nothing, and imports torch only to start a replica.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path

import ray

from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.teachers.serving.replica_health import health_of

_LOOK_S = 1.0  # between two checks of the queues
# Requests per replica above which the pool grows; checks before it grows or shrinks.
_BUSY, _GROW_AFTER, _SHRINK_AFTER = 2.0, 3, 30


@dataclass(frozen=True)
class PoolStatus:
    """The status of a pool: one line of ``radioplat teachers status``."""

    teacher: str
    weights: str
    bounds: tuple[int, int]
    replicas: int
    waiting: int
    forwards: int


class PoolController:
    """The class of the controller's actor. Replicas are its child actors, so they end with it.

    Args:
        num_gpus: of each replica.
        fingerprint: of the files that replicas load, as they are now; they may be replaced later.
        log: file for the output of the replicas.
        rests: begin without replicas, which then start once somebody asks for them.
    """

    def __init__(
        self,
        teacher: ResolvedTeacher,
        num_gpus: float,
        fingerprint: dict[str, str],
        log: Path | None = None,
        rests: bool = False,
    ) -> None:
        self._teacher, self._num_gpus, self._log = teacher, num_gpus, log
        self._least, self._most = teacher.service.bounds
        self._fingerprint = fingerprint
        self._rests = rests
        self._without: set[str] = set()  # groups of workers that let it rest
        self._replicas = [] if rests else [self._start() for _ in range(self._least)]
        self._lock = threading.Lock()
        if self._most > self._least:
            threading.Thread(target=self._scale, name="scale", daemon=True).start()

    def replicas(self, asker: str = "") -> list:
        """Return handles of the replicas that accept requests now; a pool that rests starts its replicas."""
        return self._awake(asker)

    def rest(self, asker: str = "", askers: int = 1) -> None:
        """End the replicas, and free their resources, until :meth:`wake` or :meth:`replicas` is called.

        Args:
            asker: group of workers that does not ask for now.
            askers: how many groups there are; the replicas end with the last of them.
        """
        with self._lock:
            self._without.add(asker)
            if self._rests or len(self._without) < askers:
                return
            replicas, self._replicas, self._rests = self._replicas, [], True
        for replica in replicas:
            ray.kill(replica)

    def wake(self, asker: str = "") -> None:
        """Start the replicas of a pool that rests; returns before they have loaded their weights."""
        self._awake(asker)

    def _awake(self, asker: str) -> list:
        with self._lock:
            self._without.discard(asker)
            if self._rests:
                self._replicas, self._rests = [self._start() for _ in range(self._least)], False
            return list(self._replicas)

    def _running(self) -> list:
        with self._lock:
            return list(self._replicas)

    def fingerprint(self) -> dict[str, str]:
        """Return the fingerprint of the files and settings of the replicas, by field."""
        return self._fingerprint

    def replica_size(self) -> tuple[float, float]:
        """Return GPUs and CPUs of each replica."""
        return self._num_gpus, self._teacher.service.num_cpus

    def restart(self, place: str, process: int) -> bool:
        """Restart the replica with actor id ``place`` if its process is still ``process``; several students may call
        it."""
        for replica in self._running():
            if replica._actor_id.hex() == place:
                health = health_of(replica)
                if health is not None and health.process == process:
                    ray.kill(replica, no_restart=False)
                    return True
        return False

    def status(self) -> PoolStatus:
        """Return the status of the pool."""
        statuses = [health_of(replica) for replica in self._running()]
        alive = [health for health in statuses if health is not None]
        return PoolStatus(
            self._teacher.name,
            self._teacher.weights or "",
            (self._least, self._most),
            len(alive),
            sum(p.waiting for p in alive),
            sum(p.forwards for p in alive),
        )

    def _start(self) -> ray.actor.ActorHandle:
        from radioplat.teachers.serving.replica import start_replica  # here: Ray's declaration of tensors imports torch

        return start_replica(self._teacher, self._num_gpus, self._log)

    def _scale(self) -> None:
        busy = idle = 0
        while True:
            time.sleep(_LOOK_S)
            replicas = self._running()
            statuses = [p for p in map(health_of, replicas) if p is not None]
            if not statuses:
                continue
            load = sum(p.waiting for p in statuses) / len(statuses)
            busy = busy + 1 if load >= _BUSY else 0
            idle = idle + 1 if load == 0 else 0
            if busy >= _GROW_AFTER and len(replicas) < self._most:
                self._grow()
                busy = 0
            elif idle >= _SHRINK_AFTER and len(replicas) > self._least:
                self._shrink()
                idle = 0

    def _grow(self) -> None:
        """Add one replica, used once it has its weights; without free resources it may wait for a node."""
        replica = self._start()
        try:
            ray.get(replica.ready.remote())
        except ray.exceptions.RayError:
            return
        with self._lock:
            if not self._rests:
                self._replicas.append(replica)
                return
        ray.kill(replica)

    def _shrink(self) -> None:
        """Remove one replica, after it has completed its requests."""
        with self._lock:
            if len(self._replicas) <= self._least:  # it rests meanwhile
                return
            replica = self._replicas.pop()
        while (health := health_of(replica)) is not None and health.waiting:
            time.sleep(_LOOK_S)
        ray.kill(replica)
