"""Capture the outputs of named modules while a model runs."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from radioplat.errors import Problem, SpecError


@contextlib.contextmanager
def captured(model: nn.Module, names: Iterable[str]) -> Iterator[dict[str, torch.Tensor]]:
    """Record the output of every module of ``names`` in ``model`` inside the block; of the last call, if several.

    A sequence or a mapping is represented by its first tensor. The hooks are removed at the end of the block.
    """
    outputs: dict[str, torch.Tensor] = {}

    def note(name: str):
        def hook(module: nn.Module, arguments: Any, output: Any) -> None:
            outputs[name] = _first_tensor(output, name)

        return hook

    hooks = [model.get_submodule(name).register_forward_hook(note(name)) for name in names]
    try:
        yield outputs
    finally:
        for hook in hooks:
            hook.remove()


def require_modules(model: nn.Module, names: Mapping[str, str]) -> None:
    """Check that ``model`` has modules.

    Args:
        model: the model.
        names: of the modules, by the spec field that names each.

    Raises:
        SpecError: with a problem for each that is missing; the hint lists the nearest names.
    """
    known, problems = [name for name, _ in model.named_modules() if name], []
    for where, name in names.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, 3, 0.4) or known[:3]
            problems.append(Problem(f"the model has no module {name!r}", where, f"Nearest: {', '.join(near)}."))
    if problems:
        raise SpecError(*problems)


def as_features(output: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
    """Convert a module's output to one vector ``[B, D]`` or a map ``[B, h, w, D]``.

    Args:
        output: ``[B, D]``; tokens ``[B, N, D]``, of which the last ``h * w`` are the map's, row by row; or a map, with
            channels second, or last if only so it is as wide as high.
        grid: of the model's own map, rows and columns; tokens of another count make a square map, or a row.

    Raises:
        ValueError: another number of dimensions.
    """
    if output.ndim == 2:
        return output
    if output.ndim == 4:
        channels_last = output.shape[1] == output.shape[2] != output.shape[3] and output.shape[2] != output.shape[3]
        return output if channels_last else output.permute(0, 2, 3, 1)
    if output.ndim != 3:
        raise ValueError(f"an output of {output.ndim} dimensions is no vector, no tokens and no map")
    batch, count, width = output.shape
    rows, columns = grid
    if count < rows * columns:
        side = int(count**0.5)
        rows, columns = (side, side) if side * side == count else (1, count)
    return output[:, count - rows * columns :].reshape(batch, rows, columns, width)


def _first_tensor(output: Any, name: str) -> torch.Tensor:
    if isinstance(output, torch.Tensor):
        return output
    values = output.values() if isinstance(output, Mapping) else output
    for value in values if isinstance(values, Iterable) else ():
        if isinstance(value, torch.Tensor):
            return value
    raise TypeError(f"module {name} returns {type(output).__name__}, which holds no tensor")
