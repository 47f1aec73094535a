"""Exchange small objects and tensors between ranks. The training thread alone may call these functions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from radioplat.errors import RadioplatError

Result = TypeVar("Result")


def alone() -> bool:
    """Return True if this is the only worker."""
    return not dist.is_initialized() or dist.get_world_size() == 1


def is_first() -> bool:
    """Return True on rank 0 and without a process group."""
    return alone() or dist.get_rank() == 0


def broadcast_object(value: Any) -> Any:
    """Return rank 0's ``value`` (picklable) on every rank."""
    if alone():
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def from_first(action: Callable[[], Result]) -> Result:
    """Call ``action`` on rank 0 only and return its result (picklable) on every rank.

    Raises:
        RadioplatError: on every rank, if ``action`` raised one on rank 0.
    """
    answer: Any = None
    if is_first():
        try:
            answer = action()
        except RadioplatError as error:
            answer = error
    answer = broadcast_object(answer)
    if isinstance(answer, RadioplatError):
        answer.agreed = True
        raise answer
    return answer


def gather_objects(value: Any) -> list[Any]:
    """Return the ``value`` (picklable) of every rank, by rank."""
    if alone():
        return [value]
    box = [None] * dist.get_world_size()
    dist.all_gather_object(box, value)
    return box


@contextlib.contextmanager
def mark_agreed() -> Iterator[None]:
    """Set ``agreed`` on a :class:`RadioplatError` raised in the block; every rank must raise the same error."""
    try:
        yield
    except RadioplatError as error:
        error.agreed = True
        raise


def maximum(values: torch.Tensor) -> torch.Tensor:
    """Return the elementwise maximum over the ranks, computed in place; every rank must call it."""
    return _reduce(values, dist.ReduceOp.MAX)


def total(values: torch.Tensor) -> torch.Tensor:
    """Return the elementwise sum over the ranks, computed in place; every rank must call it."""
    return _reduce(values, dist.ReduceOp.SUM)


def _reduce(values: torch.Tensor, op: dist.ReduceOp) -> torch.Tensor:
    """Reduce ``values`` in place; with NCCL, a CPU tensor is reduced through a copy on the GPU."""
    if alone():
        return values
    if values.device.type == "cpu" and dist.get_backend() == "nccl":
        on_device = values.cuda()
        dist.all_reduce(on_device, op=op)
        return values.copy_(on_device)
    dist.all_reduce(values, op=op)
    return values


def barrier() -> None:
    """Wait until every rank has called it."""
    if not alone():
        dist.barrier()
