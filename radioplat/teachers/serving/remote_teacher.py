"""Teachers as separate Ray actors: the training worker's handle of a pool."""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import ray

from radioplat.data.batch import Batch
from radioplat.errors import PlacementError, TeacherSilent, TrainingError, wrapped_error
from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.spec.schema.cluster import Placement, TeacherServiceConfig, Transport
from radioplat.teachers.serving.client import Held, Pending
from radioplat.teachers.serving.packed_features import Packed
from radioplat.teachers.serving.pool import await_pool_controller, open_pool_controller
from radioplat.teachers.serving.recent_answers import request_key
from radioplat.teachers.serving.replica_health import health_of

_LOOK_AGAIN_S = 5.0  # maximum age of the list of an elastic pool's replicas
_LOST = (ray.exceptions.RayActorError, ray.exceptions.WorkerCrashedError)


def _report_nothing(line: str) -> None:
    """Do nothing; the default for ``say``, because only a worker with a status file reports delays."""


@dataclass
class RemoteTeacher:
    """The client of a pool in a training worker; picklable.

    A request is sent to the replica with the fewest open requests of this worker; with ``colocate`` in the spec, among
    those on its own node. If its replica is lost, the request is sent to another.

    Attributes:
        least: its fewest replicas, and the GPUs and CPUs of each.
        say: called when a lost replica delays results.
        direct: whether features are sent from device to device; see :meth:`choose_transport`.
        rests: whether its pool has no replicas, in a stage that is taught without it.
        has_rested: whether its pool had no replicas, and has not answered since.
        asker: name of the group of workers that this is a client for; a pool rests once all groups let it.
        askers: how many groups there are.
        turn: counter that chooses among equally busy replicas. Each of a group of workers starts with its rank: if all
            started with the same value, all would use one replica at a time.
    """

    name: str
    controller: ray.actor.ActorHandle
    grid: tuple[int, int]
    wanted: frozenset[str]
    service: TeacherServiceConfig
    least: Held
    say: Callable[[str], None] = _report_nothing
    direct: bool = False
    rests: bool = False
    has_rested: bool = False
    asker: str = ""
    askers: int = 1
    turn: int = field(default_factory=lambda: random.randrange(1 << 30))  # two runs that share a pool have equal ranks
    _replicas: list = field(default_factory=list)
    _size: int = 0  # replicas in the last listing, including other nodes
    _listed_at: float = 0.0
    _open: dict = field(default_factory=dict)  # actor id -> number of our open requests
    _restarted: set = field(default_factory=set)  # actor ids whose features use the object store from now on
    _to_choose: tuple[str, bool] | None = None  # arguments of choose_transport, for when replicas are there

    def __post_init__(self) -> None:
        self.has_rested = self.rests

    def share(self, pixels: np.ndarray, batch: Batch | None = None) -> SharedView:
        """Put the view into the object store, once for all teachers that use it."""
        return SharedView(ray.put(pixels), pixels)

    def submit(self, shared: SharedView, micro_batch: int) -> Pending:
        """Send a micro-batch; call the result to fetch the features.

        The result raises:
            TeacherSilent: one forward has run for ``timeout_s``, and again after the replica was restarted.
            TrainingError: no replica came back within ``recovery_timeout_s``.
            TeacherOutOfMemory: a forward does not fit into the memory of the replica.
        """
        if self._to_choose is not None:
            arguments, self._to_choose, self.rests = self._to_choose, None, False
            self.choose_transport(*arguments)
        request = _Request(self, shared)
        return request.wait

    def rest(self) -> None:
        """Free the resources of the pool until it is asked again; a named pool stays for other runs."""
        if self.service.pool:
            return
        self.rests = self.has_rested = True
        self.forget_replicas()
        ray.get(self.controller.rest.remote(self.asker, self.askers))

    def wake(self) -> None:
        """Let the replicas of a pool that rests start."""
        if self.rests:
            self.rests = False
            self.controller.wake.remote(self.asker)

    def precision(self) -> str:
        """Return the dtype that the teacher computes in, ``tf32`` for fp32 multiplied as TF32.

        Raises:
            PlacementError: the replicas compute in different dtypes, on different hardware, or a pool that rests
                cannot start.
        """
        if self.rests:
            self.rests = False
            await_pool(self)
            self.has_rested = False
        precisions = set(ray.get([replica.precision.remote() for replica in self.replicas()]))
        if len(precisions) > 1:
            raise PlacementError(
                f"replicas of teacher {self.name} compute in {' and '.join(sorted(precisions))}",
                where=f"teachers.{self.name}.precision",
                hint="Set it, so that features do not depend on which replica computes them.",
            )
        return precisions.pop()

    def choose_transport(self, device: str, cached: bool) -> None:
        """Choose how the features are sent to this worker.

        Args:
            device: type of the worker's device.
            cached: whether there is a feature cache, in host memory, between them.

        Raises:
            PlacementError: the spec sets ``nixl``, and one end does not have it.
        """
        if self.rests:
            self._to_choose = (device, cached)
            return
        wanted = self.service.transport
        if wanted is Transport.auto:
            if device == "cpu" or not self.least.num_gpus or cached:
                return
        elif wanted is Transport.object_store:
            return
        from radioplat.teachers.serving.transport import has_nixl

        ends = {f"replica {i + 1}": replica.has_nixl.remote() for i, replica in enumerate(self.replicas())}
        without = [end for end, answer in ends.items() if not ray.get(answer)]
        without += [] if has_nixl() else ["the training worker"]
        self.direct = not without
        if without and wanted is Transport.nixl:
            raise PlacementError(
                f"{', '.join(without)} of teacher {self.name} cannot load NIXL",
                where=f"teachers.{self.name}.transport",
                hint='Install it on every node (pip install "radioplat[nixl]"), or use auto.',
            )

    def held(self) -> Held:
        """Return the current resources of the teacher; of an elastic pool it is some seconds old."""
        return replace(self.least, replicas=0 if self.rests else self._size or self.least.replicas)

    def replicas(self) -> list:
        """Return the replicas that accept requests now."""
        least, most = self.service.bounds
        if not self._replicas or (least < most and time.monotonic() - self._listed_at > _LOOK_AGAIN_S):
            replicas = ray.get(self.controller.replicas.remote(self.asker))
            self._size = len(replicas)
            here = ray.get_runtime_context().get_node_id()
            colocate = self.service.placement is Placement.colocate
            near = [r for r in replicas if (p := health_of(r)) and p.node == here] if colocate else []
            self._replicas, self._listed_at = near or replicas, time.monotonic()
        return self._replicas

    def choose(self, key: bytes | None = None) -> ray.actor.ActorHandle:
        """Return the replica with the fewest open requests of this worker; equally busy ones are chosen in turn.

        Args:
            key: of a request that may come again: it alone decides, so that one replica gets all of them.
        """
        replicas = self.replicas()
        if key is not None:
            return sorted(replicas, key=lambda r: str(r._actor_id))[int.from_bytes(key[:8], "big") % len(replicas)]
        start = self.turn % len(replicas)
        self.turn += 1
        return min(replicas[start:] + replicas[:start], key=lambda r: self._open.get(r._actor_id, 0))

    def forget_replicas(self) -> None:
        """Discard the list of replicas: one of them is lost."""
        self._replicas = []


class SharedView:
    """A view in the object store.

    Attributes:
        reference: of the pixels there.
    """

    def __init__(self, reference: ray.ObjectRef, pixels: np.ndarray) -> None:
        self.reference, self._pixels = reference, pixels

    @functools.cached_property
    def key(self) -> bytes:
        """Identity of the pixels; see :func:`radioplat.teachers.serving.recent_answers.request_key`."""
        return request_key(self._pixels)


class _Request:
    """One micro-batch in flight: sent again if its replica is lost; if its result is late, the replica is checked."""

    def __init__(self, teacher: RemoteTeacher, shared: SharedView) -> None:
        self._teacher, self._pixels = teacher, shared.reference
        self._key = shared.key if teacher.service.remembers else None
        self._restarts = 0
        self._send()

    def _send(self) -> None:
        teacher = self._teacher
        self._replica = teacher.choose(self._key)
        teacher._open[self._replica._actor_id] = teacher._open.get(self._replica._actor_id, 0) + 1
        self._counted = True
        direct = teacher.direct and self._replica._actor_id not in teacher._restarted
        method = self._replica.forward_tensors if direct else self._replica.forward
        self._reference = method.remote(self._pixels, teacher.grid, teacher.wanted)

    def _closed(self) -> None:
        if self._counted:
            self._teacher._open[self._replica._actor_id] -= 1
            self._counted = False

    def wait(self) -> Packed:
        """Fetch the features; a second call fetches them again."""
        teacher, lost_since = self._teacher, None
        while True:
            try:
                answer = ray.get(self._reference, timeout=teacher.service.timeout_s)
                self._closed()
                teacher.has_rested = False
                return answer
            except ray.exceptions.GetTimeoutError:
                lost_since = self._look_after(lost_since)
            except ray.exceptions.RayDirectTransportError:
                # The replica ended with the features. NIXL identifies processes by actor and rejects the new one.
                self._closed()
                teacher._restarted.add(self._replica._actor_id)
                self._send()
            except _LOST:
                self._closed()
                teacher.forget_replicas()
                self._send()
            except ray.exceptions.RayTaskError as error:
                self._closed()
                if known := wrapped_error(error):  # without Ray's traceback in its message
                    raise known from None
                raise

    def _look_after(self, lost_since: float | None) -> float | None:
        """Check a late result: wait if the replica is working, else restart it or wait for its restart."""
        teacher, now = self._teacher, time.monotonic()
        limit = teacher.service.timeout_s
        health = health_of(self._replica)
        if health is None or not health.loaded:
            lost_since = lost_since or now
            if now - lost_since > teacher.service.recovery_timeout_s:
                lost = "lost a replica and none took its place"
                rested = "had no replicas in a stage without it, and none has started"
                raise TrainingError(
                    f"teacher {teacher.name} {rested if teacher.has_rested else lost} in "
                    f"{teacher.service.recovery_timeout_s:g} s",
                    where=f"teachers.{teacher.name}.recovery_timeout_s",
                    hint="The cluster has no free resources for it: add a node, or lower num_gpus or num_cpus.",
                )
            back = "after a stage without it" if teacher.has_rested else "to come back"
            teacher.say(f"waiting for a replica of teacher {teacher.name} {back} ({now - lost_since:.0f} s)")
            return lost_since
        if health.busy_s < limit:
            return None
        if self._restarts:
            raise TeacherSilent(
                f"teacher {teacher.name} gave no answer within {limit:g} s, nor after a restart",
                where=f"teachers.{teacher.name}.timeout_s",
            )
        self._restarts += 1
        teacher.say(f"teacher {teacher.name} gave no answer within {limit:g} s: its replica is restarted")
        ray.get(teacher.controller.restart.remote(self._replica._actor_id.hex(), health.process))
        return None


def start_pool(
    teacher: ResolvedTeacher, grid: tuple[int, int], num_gpus: float, log: Path | None = None, rests: bool = False
) -> RemoteTeacher:
    """Start the pool of ``teacher``, or join the named one. :func:`await_pool` waits for it, so that pools load in
    parallel.

    Args:
        grid: the loss grid, rows and columns.
        num_gpus: of each replica; 0 runs it on the CPU.
        log, rests: see :func:`radioplat.teachers.serving.pool.open_pool_controller`.
    """
    service, controller = teacher.service, open_pool_controller(teacher, num_gpus, log, rests)
    gpus, cpus = num_gpus, service.num_cpus
    if service.pool:  # the size of a replica was chosen when the pool was started
        gpus, cpus = ray.get(controller.replica_size.remote())
    return RemoteTeacher(
        teacher.name,
        controller,
        grid,
        teacher.wanted,
        service,
        Held(service.bounds[0], gpus, cpus),
        rests=rests and not service.pool,
    )


def await_pool(pool: RemoteTeacher) -> None:
    """Wait until all replicas are loaded; see :func:`radioplat.teachers.serving.pool.await_pool_controller`."""
    await_pool_controller(pool.controller, pool.name, pool.service.start_timeout_s)


def stop_pool(pool: RemoteTeacher) -> None:
    """End every replica, unless the pool has a name and may serve others."""
    if not pool.service.pool:
        ray.kill(pool.controller)
