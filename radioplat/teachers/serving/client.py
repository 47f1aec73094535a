"""How a student asks for features, wherever the teacher runs."""

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
    """What a teacher occupies while a run asks it: replicas, and the GPUs and CPUs of each."""

    replicas: int
    num_gpus: float
    num_cpus: float


class TeacherClient(Protocol):
    """One teacher as a training worker sees it."""

    name: str

    def share(self, pixels: np.ndarray, batch: Batch | None = None) -> Any:
        """Make uint8 ``[B, 3, H, W]`` reachable for all teachers of this kind that see the same view; sent once.

        Args:
            batch: the micro-batch that the pixels are a view of, for clients that remember samples.
        """
        ...

    def submit(self, shared: Any, micro_batch: int) -> Pending:
        """Ask for the features of what :meth:`share` returned; returns at once where the teacher runs elsewhere."""
        ...

    def precision(self) -> str:
        """The dtype it computes in, once its weights are loaded: ``bfloat16``."""
        ...

    def held(self) -> Held:
        """What it occupies now, for all workers of the run; asks nobody."""
        ...


class InlineTeacher:
    """A teacher inside the training worker (``placement: inline``, and local mode).

    It shares the worker's GPU with the student, and how much of that is its own is not known: it is taken to be
    ``teachers.<name>.num_gpus``, 0 where that is not set. On a CPU it occupies no GPU, whatever the spec says.

    Args:
        workers: of the run; each has one of these.
    """

    def __init__(self, teacher: ResolvedTeacher, grid: tuple[int, int], device: str, workers: int = 1) -> None:
        from radioplat.teachers.serving.runner import TeacherRunner  # here: who asks a teacher elsewhere needs no torch

        self.name = teacher.name
        self._runner, self._grid, self._wanted = TeacherRunner(teacher, device), grid, teacher.wanted
        self._ahead = device != "cpu"
        gpus = 0.0 if device == "cpu" else teacher.service.num_gpus or 0.0
        self._held = Held(workers, gpus, teacher.service.num_cpus)

    def share(self, pixels: np.ndarray, batch: Batch | None = None) -> np.ndarray:
        """Nothing to send."""
        return pixels

    def submit(self, shared: np.ndarray, micro_batch: int) -> Pending:
        """See :class:`TeacherClient`; on a GPU the forward runs in the caller's thread.

        On a CPU it runs in the thread that asks for the answer, once: student and teacher take turns with all cores,
        where two thread pools at once would keep each other from theirs (measured: a third slower forwards).
        """
        answer = functools.cache(lambda: self._runner(shared, self._grid, self._wanted))
        if self._ahead:
            answer()
        return answer

    def precision(self) -> str:
        """See :class:`TeacherClient`."""
        return self._runner.precision

    def held(self) -> Held:
        """See :class:`TeacherClient`."""
        return self._held
