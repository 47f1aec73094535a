"""The replicas of one teacher: kept by an actor that counts, scales and restarts them.

A pool of a run ends with the run. A named one (``teachers.<name>.pool``) belongs to the cluster and serves any number
of runs; :mod:`radioplat.teachers.named_pools` lists and stops those.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import ray

from radioplat.errors import PlacementError, SpecError
from radioplat.spec.resolve import ResolvedTeacher
from radioplat.teachers.cache_key import file_hash
from radioplat.teachers.replica import Pulse, start_replica
from radioplat.teachers.upsamplers.checkpoint import KIND, VERSION

NAMESPACE = "radioplat"
_LOOK_S, _PATIENCE_S = 1.0, 10.0  # between two looks at the queues; for an answer of a replica
_BUSY, _GROW_AFTER, _SHRINK_AFTER = 2.0, 3, 30  # requests a replica that are too many; looks before size changes


@dataclass(frozen=True)
class PoolStatus:
    """One line of ``radioplat teachers status``."""

    teacher: str
    weights: str
    bounds: tuple[int, int]
    replicas: int
    waiting: int
    forwards: int


class PoolKeeper:
    """The actor body. Replicas are its children: they end with it."""

    def __init__(self, teacher: ResolvedTeacher, num_gpus: float) -> None:
        self._teacher, self._num_gpus = teacher, num_gpus
        self._least, self._most = teacher.service.bounds
        self._fingerprint = fingerprint(teacher)  # of the files that replicas load now; they may be replaced later
        self._replicas = [start_replica(teacher, num_gpus) for _ in range(self._least)]
        self._lock = threading.Lock()
        if self._most > self._least:
            threading.Thread(target=self._scale, name="scale", daemon=True).start()

    def replicas(self) -> list:
        """Handles of the replicas that take requests now."""
        with self._lock:
            return list(self._replicas)

    def fingerprint(self) -> dict[str, str]:
        """See :func:`fingerprint`."""
        return self._fingerprint

    def replica_size(self) -> tuple[float, float]:
        """GPUs and CPUs of each replica."""
        return self._num_gpus, self._teacher.service.num_cpus

    def restart(self, place: str, process: int) -> bool:
        """Restart the replica with actor id ``place`` if it still is ``process``; several students may ask."""
        for replica in self.replicas():
            if replica._actor_id.hex() == place:
                pulse = pulse_of(replica)
                if pulse is not None and pulse.process == process:
                    ray.kill(replica, no_restart=False)
                    return True
        return False

    def status(self) -> PoolStatus:
        """What the pool is doing."""
        pulses = [pulse_of(replica) for replica in self.replicas()]
        alive = [pulse for pulse in pulses if pulse is not None]
        return PoolStatus(
            self._teacher.name,
            self._teacher.weights or "",
            (self._least, self._most),
            len(alive),
            sum(p.waiting for p in alive),
            sum(p.forwards for p in alive),
        )

    def _scale(self) -> None:
        busy = idle = 0
        while True:
            time.sleep(_LOOK_S)
            replicas = self.replicas()
            pulses = [p for p in map(pulse_of, replicas) if p is not None]
            if not pulses:
                continue
            load = sum(p.waiting for p in pulses) / len(pulses)
            busy = busy + 1 if load >= _BUSY else 0
            idle = idle + 1 if load == 0 else 0
            if busy >= _GROW_AFTER and len(replicas) < self._most:
                self._grow()
                busy = 0
            elif idle >= _SHRINK_AFTER and len(replicas) > self._least:
                self._shrink()
                idle = 0

    def _grow(self) -> None:
        """One replica more, from when it has its weights; where the cluster has no room it may wait for a node."""
        replica = start_replica(self._teacher, self._num_gpus)
        try:
            ray.get(replica.ready.remote())
        except ray.exceptions.RayError:
            return
        with self._lock:
            self._replicas.append(replica)

    def _shrink(self) -> None:
        """One replica less, when it has answered all that it was asked."""
        with self._lock:
            replica = self._replicas.pop()
        while (pulse := pulse_of(replica)) is not None and pulse.waiting:
            time.sleep(_LOOK_S)
        ray.kill(replica)


def pulse_of(replica: ray.actor.ActorHandle) -> Pulse | None:
    """How ``replica`` is; None where its process does not answer."""
    try:
        return ray.get(replica.pulse.remote(), timeout=_PATIENCE_S)
    except (ray.exceptions.GetTimeoutError, ray.exceptions.RayActorError):
        return None


def fingerprint(teacher: ResolvedTeacher) -> dict[str, str]:
    """What a teacher's features depend on, by field: two runs may share a pool where it is equal."""
    service = teacher.service
    backbone = json.dumps(dataclasses.asdict(teacher.backbone), sort_keys=True, default=str)
    return {
        "weights": _file(teacher.weights),
        "backbone": hashlib.sha256(backbone.encode()).hexdigest()[:16],
        "input_size": str(teacher.input_size),
        "upsampler": _upsampler(teacher),
        "normalisation": f"{teacher.norm_mean} {teacher.norm_std}",
        "precision": service.precision.value,
        "max_batch": str(service.max_batch),
        "compile": str(service.compile),
        "logits": str("logits" in teacher.wanted),
    }


def _upsampler(teacher: ResolvedTeacher) -> str:
    if not (path := teacher.upsampler_checkpoint):
        return "none"
    with contextlib.suppress(OSError):
        path = f"sha256 {file_hash(Path(path))[:16]}"
    # Where sizes are drawn the teacher enlarges its view itself: the same pixels, another answer.
    return f"{KIND} {VERSION}, {path}, for {teacher.view_size} px"


def _file(path: str | None) -> str:
    path = path or ""
    with contextlib.suppress(OSError):
        state = os.stat(path)
        return f"{os.path.realpath(path)} ({state.st_size} bytes, {state.st_mtime_ns})"
    return path


def open_keeper(teacher: ResolvedTeacher, num_gpus: float) -> ray.actor.ActorHandle:
    """The keeper of the pool that ``teacher`` is asked of: the named one, started if need be, or one of its own.

    Raises:
        SpecError: the named pool serves another teacher, or the same otherwise.
    """
    options = {"num_cpus": 0, "max_concurrency": 8, "max_restarts": -1}
    name = teacher.service.pool
    if not name:
        return ray.remote(PoolKeeper).options(**options).remote(teacher, num_gpus)
    keeper = (
        ray.remote(PoolKeeper)
        .options(**options, name=f"{name}/{teacher.name}", namespace=NAMESPACE, lifetime="detached", get_if_exists=True)
        .remote(teacher, num_gpus)
    )
    theirs, ours = ray.get(keeper.fingerprint.remote()), fingerprint(teacher)
    different = [f"{key}: {theirs[key]} there, {ours[key]} here" for key in ours if theirs[key] != ours[key]]
    if different:
        raise SpecError(
            f"pool {name} serves another {teacher.name} ({'; '.join(different)})",
            where=f"teachers.{teacher.name}.pool",
            hint="Name another pool, or stop that one: radioplat teachers stop.",
        )
    return keeper


def await_keeper(keeper: ray.actor.ActorHandle, name: str, timeout_s: float) -> None:
    """Wait until each replica has loaded its weights.

    Raises:
        PlacementError: the cluster gave no place in time.
        WeightsError: the weights do not fit or cannot be read.
    """
    replicas = []
    try:
        begin = time.monotonic()
        replicas = ray.get(keeper.replicas.remote(), timeout=timeout_s)
        ray.get([r.ready.remote() for r in replicas], timeout=max(0.0, timeout_s - (time.monotonic() - begin)))
    except ray.exceptions.GetTimeoutError:
        raise PlacementError(
            f"the {len(replicas)} replica(s) of teacher {name} did not all start within {timeout_s:g} s",
            where=f"teachers.{name}",
            hint="The cluster may be full: lower num_cpus, num_gpus or replicas, add nodes, or raise start_timeout_s.",
        ) from None
    except ray.exceptions.RayTaskError as error:
        raise error.cause if isinstance(error.cause, Exception) else error from None
