"""Copies between host memory and a device, through pinned memory and on streams of their own.

On a CPU nothing is copied: every function returns the memory that it was given.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch

_ALIGNED = 256  # bytes; every type may begin at a multiple


def use_device(device: torch.device) -> None:
    """Make ``device`` this thread's: a thread that does not ask gets a context on the first GPU, on every rank."""
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)


class _Writable:
    """Memory of a read-only array, for torch, which has no read-only tensors and warns."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array  # keeps the memory
        place, _ = array.__array_interface__["data"]
        self.__array_interface__ = {**array.__array_interface__, "data": (place, False)}


def tensor_of(array: np.ndarray) -> torch.Tensor:
    """Return ``array`` as a tensor on the CPU that shares its memory, which may be read-only: never write to it.

    An array that is not contiguous is copied.
    """
    array = np.ascontiguousarray(array)
    return torch.from_numpy(array if array.flags.writeable else np.asarray(_Writable(array)))


class CopyGroup:
    """Tensors that are copied to a device together, through one piece of pinned memory.

    Attributes:
        done: event after the last copy, once the group is complete; None on a CPU.
    """

    def __init__(self, device: torch.device, room: torch.Tensor | None) -> None:
        self._device, self._room = device, room
        self.bytes = 0  # of pinned memory that the group needs
        self.done: torch.cuda.Event | None = None

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return ``tensor`` on the device, complete after :attr:`done`; one that is there already is not copied."""
        if self._device.type == tensor.device.type:
            return tensor
        there = torch.empty(tensor.shape, dtype=tensor.dtype, device=self._device)
        if tensor.numel():
            pinned = self._pinned(tensor.nbytes).view(tensor.dtype).view(tensor.shape)
            there.copy_(pinned.copy_(tensor), non_blocking=True)
        return there

    def _pinned(self, size: int) -> torch.Tensor:
        """Return ``size`` bytes of pinned memory: of the ring, or what it lacks from torch's own allocator."""
        start = self.bytes
        self.bytes += -(-size // _ALIGNED) * _ALIGNED
        if self._room is None or self.bytes > len(self._room):
            return torch.empty(size, dtype=torch.uint8, pin_memory=True)
        return self._room[start : start + size]


class DeviceCopies:
    """Copy groups of tensors to ``device`` from one thread, through a ring of pinned memory, on a stream of its own.

    Memory of the ring is written again once the copies from it are done. It grows to the size of the largest group.

    Args:
        slots: groups that may be on their way at once.
    """

    def __init__(self, device: torch.device, slots: int = 2) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._rooms: list[torch.Tensor | None] = [None] * slots
        self._done: list[torch.cuda.Event | None] = [None] * slots
        self._next = 0

    @contextlib.contextmanager
    def group(self) -> Iterator[CopyGroup]:
        """Yield a group; its copies go on after the block, until its event ``done``."""
        if self._stream is None:
            yield CopyGroup(self._device, None)
            return
        slot, self._next = self._next, (self._next + 1) % len(self._rooms)
        if (before := self._done[slot]) is not None:
            before.synchronize()
        group = CopyGroup(self._device, self._rooms[slot])
        event = torch.cuda.Event(blocking=True)
        with torch.cuda.stream(self._stream):
            try:
                yield group
            finally:
                event.record()
                self._done[slot] = event
        group.done = event
        if (room := self._rooms[slot]) is None or len(room) < group.bytes:
            # The old memory is not used again before its copies are done: torch's allocator waits for them.
            self._rooms[slot] = torch.empty(group.bytes, dtype=torch.uint8, pin_memory=True)


def receive(done: torch.cuda.Event | None, tensors: Iterable[torch.Tensor]) -> None:
    """Make the current stream wait for ``done``, and keep the memory of ``tensors`` until it has used them."""
    if done is None:
        return
    torch.cuda.current_stream().wait_event(done)
    keep_for_this_stream(tensors)


def keep_for_this_stream(tensors: Iterable[Any]) -> None:
    """Let the memory of those of ``tensors`` that are on a GPU stay theirs until the current stream has used them.

    Needed where a tensor may be freed while a stream that did not allocate it still has work on it.
    """
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor) and tensor.is_cuda:
            tensor.record_stream(torch.cuda.current_stream(tensor.device))


def to_host(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return ``tensors``, which must be complete, in host memory: pinned if they come from a GPU, by another stream.

    The thread waits for these copies alone, not for what else the device computes.
    """
    device = next((tensor.device for tensor in tensors if tensor.is_cuda), None)
    if device is None:
        return tensors
    stream = _stream_to_host(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    done = torch.cuda.Event(blocking=True)
    with torch.cuda.stream(stream):
        keep_for_this_stream(tensors)
        copies = [torch.empty(t.shape, dtype=t.dtype, pin_memory=True).copy_(t, non_blocking=True) for t in tensors]
        done.record()
    done.synchronize()
    return copies


@functools.cache
def _stream_to_host(device: torch.device) -> torch.cuda.Stream:
    """Return this process's stream for copies to the host: torch has 32 streams, and a 33rd would be one of them."""
    return torch.cuda.Stream(device)
