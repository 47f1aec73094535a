"""One replica of a teacher: a Ray actor that serves several requests at once."""

from __future__ import annotations

import os
import threading
import time
import traceback
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import ray

from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.teachers.serving.recent_answers import RecentAnswers, request_key
from radioplat.teachers.serving.replica_health import ReplicaHealth
from radioplat.tracking.attempts.logs import tee_output

if TYPE_CHECKING:
    import numpy as np

    from radioplat.teachers.serving.batcher import Batcher
    from radioplat.teachers.serving.packed_features import Packed
    from radioplat.teachers.serving.teacher_runner import Started, TeacherRunner

AT_ONCE = 64  # concurrent requests in a replica; further ones wait at their senders


class Replica:
    """Ray actor with one teacher; Ray restarts it if its process ends, and sends its open requests again.

    Weights are loaded by the first request and not by the constructor, whose errors Ray reports only as text.
    """

    def __init__(self, teacher: ResolvedTeacher, device: str, log: Path | None = None) -> None:
        if log is not None:
            tee_output(log)
        self._arguments = (teacher, device)
        self._loading = threading.Lock()
        self._runner: TeacherRunner | None = None
        self._batcher: Batcher | None = None
        self._recent = RecentAnswers(teacher.service.remembered_bytes)
        self._gives_way = False
        self._counting = threading.Lock()
        self._running = 0  # forwards that have started and not ended
        self._since = 0.0  # since when the oldest of them has the device
        self._forwards = 0

    def ready(self) -> bool:
        """Load the weights if necessary, and return True; raises the errors of loading."""
        return self._loaded() is not None

    def forward(self, pixels: np.ndarray, grid: tuple[int, int], wanted: frozenset[str]) -> Packed:
        """Return features as arrays; see :class:`~radioplat.teachers.serving.teacher_runner.TeacherRunner`.

        Equal requests are computed once, within ``recent_bytes``.
        """
        from radioplat.teachers.serving.transport import to_host

        if not self._arguments[0].service.remembers:
            return to_host(self._loaded()(pixels, grid, wanted))
        key = (request_key(pixels), grid, wanted)
        return self._recent.get(key, lambda: to_host(self._loaded()(pixels, grid, wanted)))

    @ray.method(tensor_transport="nixl")
    def forward_tensors(self, pixels: np.ndarray, grid: tuple[int, int], wanted: frozenset[str]) -> Packed:
        """Return features as tensors, which stay here until the caller fetches them into the memory of its device."""
        return self._loaded()(pixels, grid, wanted)

    def has_nixl(self) -> bool:
        """Return whether :meth:`forward_tensors` can be called."""
        from radioplat.teachers.serving.transport import has_nixl

        return has_nixl()

    def precision(self) -> str:
        """Return the dtype that this replica computes in, ``tf32`` for fp32 multiplied as TF32."""
        self._loaded()
        assert self._runner is not None
        return self._runner.precision

    @ray.method(concurrency_group="control")
    def health(self) -> ReplicaHealth:
        """Return the health status, also while forwards run or hang."""
        since, batcher, runner = self._since, self._batcher, self._runner
        return ReplicaHealth(
            os.getpid(),
            ray.get_runtime_context().get_node_id(),
            batcher.waiting if batcher else 0,
            batcher is not None,
            time.monotonic() - since if since else 0.0,
            self._forwards,
            frozenset(runner.shapes if runner else ()),
        )

    def _loaded(self) -> Batcher:
        with self._loading:
            if self._batcher is None:
                # Here, because processes that start a replica import this file and do not need torch.
                from radioplat.teachers.serving.batcher import Batcher
                from radioplat.teachers.serving.teacher_runner import TeacherRunner

                teacher, device = self._arguments
                _set_up_torch(teacher, device)
                print(f"{datetime.now():%Y-%m-%d %H:%M:%S} teacher {teacher.name} loads on {device}", flush=True)
                self._runner = TeacherRunner(teacher, device)
                self._gives_way = device == "cpu" and teacher.service.num_cpus < 1
                self._batcher = Batcher(self._start, self._runner.max_batch, self._finish)
            return self._batcher

    def _start(self, pixels: np.ndarray, grid: tuple[int, int], wanted: frozenset[str]) -> Started:
        """Begin a forward."""
        assert self._runner is not None
        if self._gives_way:
            from radioplat.common.cpu_threads import lower_thread_priority

            lower_thread_priority()
            self._gives_way = False
        with self._counting:
            self._running += 1
            self._since = self._since or time.monotonic()
        try:
            return self._runner.start(pixels, grid, wanted)
        except BaseException:
            traceback.print_exc()
            self._ended()
            raise

    def _finish(self, started: Started) -> Packed:
        """Wait for a forward; the next may have been started meanwhile."""
        try:
            return started.finish()
        except BaseException:
            traceback.print_exc()
            raise
        finally:
            self._ended()

    def _ended(self) -> None:
        with self._counting:
            self._running -= 1
            self._since = time.monotonic() if self._running else 0.0
            self._forwards += 1


def _set_up_torch(teacher: ResolvedTeacher, device: str) -> None:
    """Compute as the run's workers do: in its threads on a CPU, with its fp32 on a GPU."""
    import torch

    from radioplat.common.cpu_threads import keep_freed_memory
    from radioplat.models.fp32_arithmetic import set_fp32_arithmetic

    if device == "cpu":
        keep_freed_memory()
    set_fp32_arithmetic(teacher.fp32, torch.device(device))
    if teacher.threads is not None and device == "cpu":
        torch.set_num_threads(teacher.threads)


def start_replica(teacher: ResolvedTeacher, num_gpus: float, log: Path | None = None) -> ray.actor.ActorHandle:
    """Start a replica on ``num_gpus`` GPUs, on the CPU if that is 0; it loads at the first request.

    Args:
        log: file for its output.
    """
    service = teacher.service
    return (
        ray.remote(concurrency_groups={"control": 2})(Replica)
        .options(
            num_cpus=service.num_cpus,
            num_gpus=num_gpus,
            resources=service.resources,
            max_restarts=-1,
            max_task_retries=-1,
            max_concurrency=AT_ONCE,
            scheduling_strategy="DEFAULT" if service.placement.value == "pack" else "SPREAD",
        )
        .remote(teacher, "cuda" if num_gpus else "cpu", log)
    )
