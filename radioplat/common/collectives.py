"""Small conversations between the ranks of a run; one thread a process group."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from radioplat.errors import RadioplatError


def alone() -> bool:
    """Whether this is the only worker."""
    return not dist.is_initialized() or dist.get_world_size() == 1


def is_first() -> bool:
    """Whether this is rank 0, or alone."""
    return alone() or dist.get_rank() == 0


def broadcast_object(value: Any, channel: dist.ProcessGroup | None = None) -> Any:
    """Rank 0's ``value`` (picklable) on every rank.

    Args:
        channel: from :func:`open_channel`, where another thread than the training one speaks.
    """
    if alone():
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0, group=channel)
    return box[0]


def gather_objects(value: Any) -> list[Any]:
    """Every rank's ``value`` (picklable), by rank."""
    if alone():
        return [value]
    box = [None] * dist.get_world_size()
    dist.all_gather_object(box, value)
    return box


@contextlib.contextmanager
def mark_agreed() -> Iterator[None]:
    """Around what all ranks decide alike: an error that leaves the block is marked as agreed."""
    try:
        yield
    except RadioplatError as error:
        error.agreed = True
        raise


def open_channel(timeout: timedelta | None = None) -> dist.ProcessGroup | None:
    """A group of its own for a second thread: two threads in one group would take each other's messages.

    Every rank calls it, in the training thread.
    """
    return None if alone() else dist.new_group(backend="gloo", timeout=timeout)


def maximum(values: torch.Tensor) -> torch.Tensor:
    """Elementwise maximum over the ranks."""
    return _reduce(values, dist.ReduceOp.MAX)


def total(values: torch.Tensor) -> torch.Tensor:
    """Elementwise sum over the ranks."""
    return _reduce(values, dist.ReduceOp.SUM)


def _reduce(values: torch.Tensor, op: dist.ReduceOp) -> torch.Tensor:
    """In place; NCCL carries no tensor of the host, such as an offloaded optimizer's, so that goes by the device."""
    if alone():
        return values
    if values.device.type == "cpu" and dist.get_backend() == "nccl":
        there = values.cuda()
        dist.all_reduce(there, op=op)
        return values.copy_(there)
    dist.all_reduce(values, op=op)
    return values


def barrier() -> None:
    """Wait for every rank."""
    if not alone():
        dist.barrier()
