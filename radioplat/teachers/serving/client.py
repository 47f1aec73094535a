"""The interface by which a training worker requests features, wherever the teacher runs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from radioplat.data.batch import Batch
from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.teachers.serving.packed_features import Packed

Pending = Callable[[], Packed]  # call it to wait for the features


@dataclass(frozen=True)
class Held:
    """Resources of a teacher during a run: replicas, and the GPUs and CPUs of each."""

    replicas: int
    num_gpus: float
    num_cpus: float


class TeacherClient(Protocol):
    """The interface to one teacher in a training worker."""

    name: str

    def share(self, pixels: np.ndarray, batch: Batch | None = None) -> Any:
        """Make uint8 ``[B, 3, H, W]`` available to all teachers of this kind that use the same view; sent once.

        Args:
            batch: the micro-batch that the pixels are a view of, for clients that cache samples.
        """
        ...

    def submit(self, shared: Any, micro_batch: int) -> Pending:
        """Request the features of the result of :meth:`share`; returns at once if the teacher runs elsewhere."""
        ...

    def precision(self) -> str:
        """Return the dtype it computes in, once its weights are loaded: ``bfloat16``."""
        ...

    def held(self) -> Held:
        """Return its current resources, for all workers of the run, without a remote call."""
        ...

    def rest(self) -> None:
        """Free its resources as far as it can: it is not asked for many steps. It can be asked at any time."""
        ...

    def wake(self) -> None:
        """Prepare for requests after :meth:`rest`; returns at once."""
        ...


class InlineTeacher:
    """A teacher inside the training worker (``placement: inline``, and local mode).

    It shares the worker's GPU with the student. How much of it the teacher uses is unknown and assumed to be
    ``teachers.<name>.num_gpus``, 0 if that is not set. On a CPU it occupies no GPU, whatever the spec sets.

    Args:
        workers: of the run; each has one of these.
    """

    def __init__(self, teacher: ResolvedTeacher, grid: tuple[int, int], device: str, workers: int = 1) -> None:
        from radioplat.teachers.serving.teacher_runner import (
            TeacherRunner,  # here: clients of remote teachers need no torch
        )

        self.name = teacher.name
        self._runner, self._grid, self._wanted = TeacherRunner(teacher, device), grid, teacher.wanted
        self._ahead = device != "cpu"
        gpus = 0.0 if device == "cpu" else teacher.service.num_gpus or 0.0
        self._held = Held(workers, gpus, teacher.service.num_cpus)

    def rest(self) -> None:
        """Do nothing: its weights stay on the worker's device."""

    def wake(self) -> None:
        """Do nothing."""

    def share(self, pixels: np.ndarray, batch: Batch | None = None) -> np.ndarray:
        """Return the pixels: nothing is sent."""
        return pixels

    def submit(self, shared: np.ndarray, micro_batch: int) -> Pending:
        """Request the features of shared images; on a GPU the caller's thread starts the forward and does not wait.

        On a CPU it runs in the thread that waits for the result, once: student and teacher alternate on all cores,
        because two thread pools at once slow each other down (measured: forwards a third slower).
        """
        if self._ahead:
            return functools.cache(self._runner.start(shared, self._grid, self._wanted).finish)
        return functools.cache(lambda: self._runner(shared, self._grid, self._wanted))

    def precision(self) -> str:
        """Return the dtype that the teacher computes in, ``tf32`` for fp32 multiplied as TF32."""
        return self._runner.precision

    def held(self) -> Held:
        """Return the current resources of the teacher."""
        return self._held
