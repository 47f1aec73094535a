"""Exchange small objects and tensors between ranks. A process group may be used by one thread only."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
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


def gather_rows(rows: torch.Tensor, counts: Sequence[int]) -> list[torch.Tensor]:
    """Return the ``rows`` of every rank, by rank, on the device of ``rows``; every rank must call it.

    Args:
        rows: ``[n, ...]``; all dimensions but the first are equal on all ranks. Not bool.
        counts: n of every rank.
    """
    if alone() or not max(counts):
        return [rows] * len(counts)
    padded = rows.new_zeros((max(counts), *rows.shape[1:]))  # the collective needs equal shapes
    padded[: len(rows)] = rows
    padded = _carried(padded)
    parts = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(parts, padded)
    return [part[:count].to(rows.device) for part, count in zip(parts, counts, strict=True)]


@torch.no_grad()
def broadcast_tensors(tensors: Iterable[torch.Tensor]) -> None:
    """Overwrite ``tensors`` by those of rank 0; every rank must pass the same number, of the same shapes and dtypes."""
    if alone():
        return
    for tensor in tensors:
        carried = _carried(tensor.contiguous())
        dist.broadcast(carried, src=0)
        if not is_first():
            tensor.copy_(carried)


def alike(
    action: Callable[[], Result],
    waiting: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
) -> Result:
    """Return the result of ``action`` on this rank; every rank must call it.

    ``action`` may not use collectives, since it may fail on one rank alone.

    Args:
        waiting: context of the wait for the other ranks.

    Raises:
        RadioplatError, OSError: on every rank, that of the first rank on which ``action`` raised one.
    """
    problem: RadioplatError | OSError | None = None
    try:
        result = action()
    except (RadioplatError, OSError) as error:
        problem = error
    with waiting():
        problems = [one for one in gather_objects(problem) if one is not None]
    if problems:
        with mark_agreed():
            raise problems[0]
    return result


@contextlib.contextmanager
def mark_agreed() -> Iterator[None]:
    """Set ``agreed`` on a :class:`RadioplatError` raised in the block; every rank must raise the same error."""
    try:
        yield
    except RadioplatError as error:
        error.agreed = True
        raise


def open_channel(timeout: timedelta) -> dist.ProcessGroup | None:
    """Return a new process group for a second thread: two threads in one group would receive each other's messages.

    Every rank must call it, in the training thread. None without a process group.

    Args:
        timeout: how long a rank waits for another.
    """
    return None if alone() else dist.new_group(backend="gloo", timeout=timeout)


def send(values: torch.Tensor, to: int, channel: dist.ProcessGroup | None = None) -> None:
    """Send a CPU tensor to rank ``to``, and wait until it has begun to receive it.

    Args:
        channel: group from :func:`open_channel`, for calls outside the training thread.
    """
    through_device = channel is None and dist.get_backend() == "nccl"
    dist.send(values.cuda() if through_device else values, to, group=channel)


def receive(values: torch.Tensor, source: int, channel: dist.ProcessGroup | None = None) -> torch.Tensor:
    """Receive from rank ``source`` into a CPU tensor of the same shape and dtype as the one sent, and return it.

    Args:
        channel: group from :func:`open_channel`, for calls outside the training thread.
    """
    if channel is None and dist.get_backend() == "nccl":
        on_device = values.cuda()
        dist.recv(on_device, source)
        return values.copy_(on_device)
    dist.recv(values, source, group=channel)
    return values


def close_channel(channel: dist.ProcessGroup | None) -> None:
    """Free a group from :func:`open_channel`; no thread may use it any more."""
    if channel is not None:
        dist.destroy_process_group(channel)


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
    carried = _carried(values)
    dist.all_reduce(carried, op=op)
    return values if carried is values else values.copy_(carried)


def _carried(values: torch.Tensor) -> torch.Tensor:
    """Return ``values`` where the process group reads them: with NCCL a CPU tensor's copy on the GPU."""
    return values.cuda() if values.device.type == "cpu" and dist.get_backend() == "nccl" else values


def barrier() -> None:
    """Wait until every rank has called it."""
    if not alone():
        dist.barrier()
