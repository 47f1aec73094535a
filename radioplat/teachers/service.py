"""Teachers as Ray actors of their own: a pool for each teacher, asked by every training worker."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import ray

from radioplat.data.batch import Batch
from radioplat.errors import PlacementError, TrainingError
from radioplat.spec.cluster import Placement
from radioplat.spec.resolve import ResolvedTeacher
from radioplat.teachers.client import Pending, TeacherRunner
from radioplat.teachers.transport import Packed


class TeacherActor:
    """One replica. Ray restarts it when its process dies, and retries the request it was at.

    Weights are loaded by the first request and not by the constructor, whose errors Ray tells only as text.
    """

    def __init__(self, teacher: ResolvedTeacher, grid: tuple[int, int], device: str) -> None:
        self._arguments = (teacher, grid, device)

    @cached_property
    def _runner(self) -> TeacherRunner:
        return TeacherRunner(*self._arguments)

    def ready(self) -> bool:
        """True once the weights are loaded; raises what loading raises."""
        return self._runner is not None

    def precision(self) -> str:
        """The dtype that this replica computes in."""
        return self._runner.precision

    def forward(self, pixels: np.ndarray) -> Packed:
        """uint8 ``[B, 3, H, W]`` to packed features."""
        return self._runner(pixels)


@dataclass(frozen=True)
class RemoteTeacher:
    """A pool of replicas as a training worker sees it; picklable."""

    name: str
    replicas: tuple
    timeout_s: float

    def share(self, pixels: np.ndarray, batch: Batch | None = None) -> ray.ObjectRef:
        """Put the view into the object store, once for all teachers that see it."""
        return ray.put(pixels)

    def submit(self, shared: ray.ObjectRef, grain: int) -> Pending:
        """Send a micro-batch to the replica that its grain falls to; the answer is fetched when it is called for."""
        reference = self.replicas[grain % len(self.replicas)].forward.remote(shared)

        def wait() -> Packed:
            try:
                return ray.get(reference, timeout=self.timeout_s)
            except ray.exceptions.GetTimeoutError:
                raise TrainingError(
                    f"teacher {self.name} gave no answer within {self.timeout_s:g} s",
                    where=f"teachers.{self.name}.timeout_s",
                ) from None

        return wait

    def precision(self) -> str:
        """See :class:`~radioplat.teachers.client.TeacherClient`; of replicas that differ, all: ``bfloat16+float32``."""
        asked = [replica.precision.remote() for replica in self.replicas]
        return "+".join(sorted(set(ray.get(asked, timeout=self.timeout_s))))


def start_pool(teacher: ResolvedTeacher, grid: tuple[int, int], num_gpus: float) -> RemoteTeacher:
    """Start the replicas of ``teacher``; :func:`await_pool` waits for them, so that several pools load at once.

    Args:
        grid: the loss grid, rows and columns.
        num_gpus: of each replica; 0 runs it on the CPU.
    """
    service = teacher.service
    strategy = "SPREAD" if service.placement is Placement.spread else "DEFAULT"
    actor = ray.remote(TeacherActor).options(
        num_cpus=service.num_cpus,
        num_gpus=num_gpus,
        max_restarts=-1,
        max_task_retries=-1,
        scheduling_strategy=strategy,
    )
    replicas = [actor.remote(teacher, grid, "cuda" if num_gpus else "cpu") for _ in range(service.replicas)]
    return RemoteTeacher(teacher.name, tuple(replicas), service.timeout_s)


def await_pool(pool: RemoteTeacher) -> None:
    """Wait until each replica has loaded its weights.

    Raises:
        PlacementError: the cluster gave no place in time.
        WeightsError: the weights do not fit or cannot be read.
    """
    try:
        ray.get([replica.ready.remote() for replica in pool.replicas], timeout=pool.timeout_s)
    except ray.exceptions.GetTimeoutError:
        raise PlacementError(
            f"the {len(pool.replicas)} replica(s) of teacher {pool.name} did not all start within {pool.timeout_s:g} s",
            where=f"teachers.{pool.name}",
            hint="The cluster may be full: lower num_cpus, num_gpus or replicas, or add nodes; or raise timeout_s.",
        ) from None
    except ray.exceptions.RayTaskError as error:
        raise error.cause if isinstance(error.cause, Exception) else error from None


def stop_pool(pool: RemoteTeacher) -> None:
    """End every replica."""
    for replica in pool.replicas:
        ray.kill(replica)
