"""Whole tensors from the pieces that ZeRO keeps on each rank, with one collective for many parameters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from radioplat.spec.resolved.zero import BUCKET
from radioplat.training.engine.whole_layout import Piece


def groups(engine: Any) -> list[list[nn.Parameter]]:
    """Return the parameters whose pieces are in each flat tensor; [] if DeepSpeed partitions nothing."""
    optimizer = engine.optimizer
    if hasattr(optimizer, "fp32_partitioned_groups_flat"):
        return optimizer.fp16_groups
    return getattr(optimizer, "bf16_groups", None) or getattr(optimizer, "bit16_groups", None) or []


def pieces(engine: Any) -> dict[nn.Parameter, Piece | None]:
    """Return this rank's piece of each parameter that DeepSpeed partitions; None if the rank has none."""
    find = _of_stage_3 if hasattr(engine.optimizer, "fp32_partitioned_groups_flat") else _of_stages_1_and_2
    members = ((flat, parameter) for flat, group in enumerate(groups(engine)) for parameter in group)
    return {parameter: find(engine.optimizer, flat, parameter) for flat, parameter in members}


def _of_stage_3(optimizer: Any, flat: int, parameter: Any) -> Piece | None:
    _, start, size = optimizer.grad_position[optimizer.get_param_id(parameter)]
    offset = dist.get_rank() * size
    real = min(size, parameter.ds_numel - offset)  # without the uninitialized padding of the last rank's piece
    return Piece(flat, start, offset, real) if real > 0 else None


def _of_stages_1_and_2(optimizer: Any, flat: int, parameter: Any) -> Piece | None:
    if (mapping := parameter._hp_mapping) is None:
        return None
    here, there = mapping.hp_fragment_address, mapping.lp_fragment_address
    return Piece(flat, here.start, there.start, there.numel)


def whole(engine: Any, names: dict[str, nn.Parameter], values: list[torch.Tensor]) -> Iterator[dict[str, torch.Tensor]]:
    """Yield the whole fp32 tensors of partitioned parameters, many at a time, of ``values`` with the shapes of
    ``masters``.

    Every rank must exhaust the iterator, and gets all of them. They are on the engine's device and share memory.
    """
    mine = pieces(engine)
    device = torch.device(engine.device)
    chunk: list[tuple[str, nn.Parameter, int]] = []
    size = 0
    for name, parameter in names.items():
        chunk.append((name, parameter, size))
        size += shape_of(parameter).numel()
        if size >= BUCKET:
            yield _exchanged(chunk, size, mine, values, device)
            chunk, size = [], 0
    if chunk:
        yield _exchanged(chunk, size, mine, values, device)


def _exchanged(
    chunk: list[tuple[str, nn.Parameter, int]],
    size: int,
    mine: dict[nn.Parameter, Piece | None],
    values: list[torch.Tensor],
    device: torch.device,
) -> dict[str, torch.Tensor]:
    buffer = torch.zeros(size, dtype=torch.float32, device=device)
    own = [(start, piece) for _, parameter, start in chunk if (piece := mine[parameter]) is not None]
    if own:  # all in one kernel, not one for each parameter
        torch._foreach_copy_(
            [buffer.narrow(0, start + piece.offset, piece.size) for start, piece in own],
            [values[piece.flat].narrow(0, piece.start, piece.size) for _, piece in own],
        )
    if dist.get_world_size() > 1:
        dist.all_reduce(buffer)  # each element is in one rank's piece, so the sum is exact
    shapes = ((name, start, shape_of(parameter)) for name, parameter, start in chunk)
    return {name: buffer.narrow(0, start, shape.numel()).view(shape) for name, start, shape in shapes}


def shape_of(parameter: nn.Parameter) -> torch.Size:
    """Return the shape of a whole parameter, also at stage 3."""
    return torch.Size(getattr(parameter, "ds_shape", parameter.shape))
