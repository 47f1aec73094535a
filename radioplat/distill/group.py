"""Small conversations between the ranks of a run."""

from __future__ import annotations

import torch
import torch.distributed as dist


def alone() -> bool:
    """Whether this is the only worker."""
    return not dist.is_initialized() or dist.get_world_size() == 1


def agree(value):
    """Rank 0's ``value`` (picklable) on every rank."""
    if alone():
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def largest(values: torch.Tensor) -> torch.Tensor:
    """Elementwise maximum over the ranks."""
    if not alone():
        dist.all_reduce(values, op=dist.ReduceOp.MAX)
    return values


def total(values: torch.Tensor) -> torch.Tensor:
    """Elementwise sum over the ranks."""
    if not alone():
        dist.all_reduce(values)
    return values


def barrier() -> None:
    """Wait for every rank."""
    if not alone():
        dist.barrier()
