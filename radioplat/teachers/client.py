"""How a student asks for features, wherever the teacher runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch

from radioplat.data.batch import Batch
from radioplat.losses.reduce import to_grid
from radioplat.spec.resolve import ResolvedTeacher
from radioplat.teachers.teacher import FrozenTeacher
from radioplat.teachers.transport import Packed, pack

Pending = Callable[[], Packed]  # call it to wait for the features


class TeacherClient(Protocol):
    """One teacher as a training worker sees it."""

    name: str

    def share(self, pixels: np.ndarray, batch: Batch | None = None) -> Any:
        """Make uint8 ``[B, 3, H, W]`` reachable for all teachers of this kind that see the same view; sent once.

        Args:
            batch: the micro-batch that the pixels are a view of, for clients that remember samples.
        """
        ...

    def submit(self, shared: Any, grain: int) -> Pending:
        """Ask for the features of what :meth:`share` returned; returns at once where the teacher runs elsewhere."""
        ...

    def precision(self) -> str:
        """The dtype it computes in, once its weights are loaded: ``bfloat16``."""
        ...


class TeacherRunner:
    """A loaded teacher that answers requests: forward, resize to the loss grid, pack.

    Args:
        grid: rows and columns of the map that the losses need; a finer map is averaged down before it is sent.

    Attributes:
        precision: the dtype of the forward, by its name.
    """

    def __init__(self, teacher: ResolvedTeacher, grid: tuple[int, int], device: str) -> None:
        self.model = FrozenTeacher(teacher, device)
        self.wanted, self.grid = teacher.wanted, grid
        self.precision = str(self.model.dtype).removeprefix("torch.")

    def __call__(self, pixels: np.ndarray) -> Packed:
        """uint8 ``[B, 3, H, W]`` to features, summary ``[B, D]`` and spatial ``[B, *grid, D]`` or less."""
        begin = time.perf_counter()
        images = torch.from_numpy(np.ascontiguousarray(pixels)) if pixels.flags.writeable else torch.tensor(pixels)
        features = self.model(images, self.wanted)
        if features.spatial is not None:
            own = features.spatial.shape[1:3]  # smaller than the grid where a small view was drawn
            grid = (min(own[0], self.grid[0]), min(own[1], self.grid[1]))
            features.spatial = to_grid(features.spatial.float(), grid).to(torch.bfloat16)
        return pack(features, time.perf_counter() - begin)


class InlineTeacher:
    """A teacher inside the training worker (``placement: inline``, and local mode)."""

    def __init__(self, teacher: ResolvedTeacher, grid: tuple[int, int], device: str) -> None:
        self.name = teacher.name
        self._runner = TeacherRunner(teacher, grid, device)

    def share(self, pixels: np.ndarray, batch: Batch | None = None) -> np.ndarray:
        """Nothing to send."""
        return pixels

    def submit(self, shared: np.ndarray, grain: int) -> Pending:
        """See :class:`TeacherClient`; the forward runs in the caller's thread."""
        packed = self._runner(shared)
        return lambda: packed

    def precision(self) -> str:
        """See :class:`TeacherClient`."""
        return self._runner.precision
