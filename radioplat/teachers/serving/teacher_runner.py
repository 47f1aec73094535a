"""A loaded teacher that computes requests at a fixed shape."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass

import numpy as np
import torch

from radioplat.common.device_copies import DeviceCopies, keep_for_this_stream, receive, tensor_of
from radioplat.common.out_of_memory import ran_out
from radioplat.errors import TeacherOutOfMemory
from radioplat.losses.base.reduce import to_grid
from radioplat.models.features import Features
from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.spec.resolved.terms import COARSER, grid_of
from radioplat.teachers.base.teacher import FrozenTeacher
from radioplat.teachers.serving.packed_features import Packed
from radioplat.teachers.serving.transport import joined, pack


@dataclass(frozen=True)
class Started:
    """Features that a GPU may still compute; on a CPU they are complete."""

    packed: Packed
    begin: torch.cuda.Event | None = None
    end: torch.cuda.Event | None = None

    def finish(self) -> Packed:
        """Wait in this thread until the features are computed; return them for use on its current stream.

        Their seconds are those between the begin and the end of the work on the GPU.
        """
        if self.begin is None or self.end is None:
            return self.packed
        self.end.synchronize()
        keep_for_this_stream(self.packed.arrays)
        return self.packed.taking(self.begin.elapsed_time(self.end) / 1000)


class TeacherRunner:
    """Forward, resize to the loss grid, pack; ``precision`` is the name of the forward's dtype, or tf32.

    Every forward has exactly ``teachers.<name>.max_batch`` rows, the last padded with zeros: a sample's features do not
    depend on the other samples of the forward, to the bit. So a forward that runs out of memory is not halved.

    Raises:
        TeacherOutOfMemory: the weights do not fit into memory.
    """

    def __init__(self, teacher: ResolvedTeacher, device: str) -> None:
        self.name = teacher.name
        self.model = self._built(teacher, device)
        tf32 = device != "cpu" and self.model.dtype is torch.float32 and teacher.fp32.tf32
        self.precision = "tf32" if tf32 else str(self.model.dtype).removeprefix("torch.")
        place = torch.device(device)
        self._copies = DeviceCopies(place)
        self._stream = torch.cuda.Stream(place) if place.type == "cuda" else None
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(place))  # which has copied the weights
        assert teacher.service.max_batch is not None  # resolving the spec sets it
        self.max_batch: int = teacher.service.max_batch
        self.shapes: set[tuple[int, ...]] = set()  # of all forwards so far

    def __call__(self, pixels: np.ndarray, grid: tuple[int, int], wanted: frozenset[str]) -> Packed:
        """Compute the wanted features of uint8 ``[B, 3, H, W]``, and wait for them; they stay on the device.

        Arguments, result and errors: :meth:`start`.
        """
        return self.start(pixels, grid, wanted).finish()

    def start(self, pixels: np.ndarray, grid: tuple[int, int], wanted: frozenset[str]) -> Started:
        """Begin to compute the wanted features of uint8 ``[B, 3, H, W]``; they stay on the device. One thread calls it.

        On a GPU this returns while it computes, on a stream of its own; the pixels are copied on another, so that
        those of the next request arrive meanwhile.

        Vectors are ``[B, D]``; maps are ``[B, *grid, D]``, or smaller if the teacher's own map is.

        Args:
            grid: rows and columns of the map that the losses need; a finer map is averaged down before it is sent.
            wanted: ``summary``, ``spatial``, ``logits``, and maps on other grids (:func:`coarser_map`).

        Raises:
            TeacherOutOfMemory: a forward does not fit into memory.
        """
        size = self.max_batch
        try:
            return self._started(pixels, size, grid, wanted)
        except Exception as error:
            if not ran_out(error):
                raise
            reason = _line(error)
        # After the except clause: the error refers to frames, and these to the tensors that fill the memory.
        height, width = pixels.shape[2:]
        smaller = f"Lower it, for example to {size // 2} (default: dataset.batch_size): more forwards of fewer images."
        single = (
            "A single image does not fit: set precision to bf16, or give the teacher a device with more free memory."
        )
        raise TeacherOutOfMemory(
            f"teacher {self.name} ran out of memory in a forward of {size} images of {height} x {width} px ({reason})",
            where=f"teachers.{self.name}.max_batch",
            hint=smaller if size > 1 else single,
        )

    def _built(self, teacher: ResolvedTeacher, device: str) -> FrozenTeacher:
        try:
            return FrozenTeacher(teacher, device)
        except Exception as error:
            if not ran_out(error):
                raise
            reason = _line(error)
        raise TeacherOutOfMemory(
            f"the weights of teacher {self.name} do not fit into the memory of {device} ({reason})",
            where=f"teachers.{self.name}",
            hint="Set precision to bf16, or give it a device with more free memory: placement: spread, num_gpus: 1.",
        )

    def _started(self, pixels: np.ndarray, size: int, grid: tuple[int, int], wanted: frozenset[str]) -> Started:
        begun = time.perf_counter()
        events = [torch.cuda.Event(enable_timing=True, blocking=True) for _ in range(2)] if self._stream else []
        with torch.cuda.stream(self._stream) if self._stream else contextlib.nullcontext():
            parts: list[Packed] = []
            for i in range(0, len(pixels), size):
                images, rows = self._images(pixels[i : i + size], size)
                if events and not parts:
                    events[0].record()
                parts.append(self._forward(images, rows, grid, wanted))
            packed = joined(parts)
            if events:
                events[1].record()
        return Started(packed, *events) if events else Started(packed.taking(time.perf_counter() - begun))

    def _images(self, pixels: np.ndarray, size: int) -> tuple[torch.Tensor, int]:
        """Return the pixels on the device, padded to ``size`` rows, and how many of these rows are images."""
        rows = len(pixels)
        if rows < size:
            pixels = np.concatenate([pixels, np.zeros((size - rows, *pixels.shape[1:]), pixels.dtype)])
        self.shapes.add(pixels.shape)
        with self._copies.group() as group:
            images = group.put(tensor_of(pixels))
        receive(group.done, [images])
        return images, rows

    def _forward(self, images: torch.Tensor, rows: int, grid: tuple[int, int], wanted: frozenset[str]) -> Packed:
        coarser = {name for name in wanted if name.startswith(COARSER)}
        features = self.model(images, wanted - coarser)
        if features.spatial is not None:
            spatial = features.spatial.float()
            others = {name: _down_to(grid_of(name), spatial) for name in sorted(coarser)}
            features = Features(features.summary, _down_to(grid, spatial), {**features.named, **others})
        return pack(features.map(lambda t: t[:rows]), 0.0)


def _down_to(grid: tuple[int, int], spatial: torch.Tensor) -> torch.Tensor:
    """Return fp32 maps averaged down to ``grid``, in bf16."""
    own = spatial.shape[1:3]  # smaller than the grid for a small view
    return to_grid(spatial, (min(own[0], grid[0]), min(own[1], grid[1]))).to(torch.bfloat16)


def _line(error: Exception) -> str:
    """Return the message of an error as one line of at most 300 characters."""
    return " ".join(str(error).split())[:300] or type(error).__name__
