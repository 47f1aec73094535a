"""Fit the layers that end a backbone's blocks again after pruning, by least squares, so that they give what was lost.

He et al. 2017, "Channel Pruning for Accelerating Very Deep Neural Networks", section 3.1 (second step: reconstruction);
for removed blocks Shopkhoev et al. 2025, "ReplaceMe", section 2. Block after block, each on the outputs of those fitted
before it, as in He et al. 2017, section 3.2.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from radioplat.compression.pruning.block_output import (
    End,
    Place,
    as_rows,
    end_of,
    input_rows,
    inputs_and_output,
    last_activation,
    outputs,
)
from radioplat.compression.pruning.depth import removable
from radioplat.models.ridge import Sums, fit_ridge
from radioplat.models.student.student import Student

_POSITIONS = 64  # of each image
_HELD_OUT = 5  # every fifth image chooses the strength of the penalty
_BATCH = 32
_TRIED = 8  # images with which the layer that ends a block is looked for
_BYTES = 2**30  # of targets that are kept at once


@dataclass(frozen=True)
class Reconstructed:
    """The outcome for one block of the pruned backbone.

    Attributes:
        block: its name.
        before, after: share of the variance of the original's output that the block's output explains on images held
            out from the fit; below 0 where the mean would be nearer.
        reason: why it was not fitted; empty if it was.
    """

    block: str
    before: float | None = None
    after: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class _Wanted:
    """A block of the pruned backbone that is fitted: where its output and the one that it should give are read."""

    place: Place
    source: Place
    end: End
    shape: torch.Size


@torch.no_grad()
def reconstruct(
    original: Student, small: Student, kept: dict[str, list[int]], images: torch.Tensor
) -> list[Reconstructed]:
    """Fit the last linear layer of each block of ``small``, in place, to the outputs of the blocks of ``original``.

    A block whose successors were removed is fitted to the output of the last of these. Blocks before the first change
    are left alone.

    Args:
        original: the student that ``small`` was cut from.
        kept: indices of the children that stay, by the name of each container that lost blocks.
        images: uint8 ``[N, 3, H, W]``.
    """
    tried, batches = images[:_TRIED], images.split(_BATCH)
    # CPUs compute convolutions faster in this format.
    original = copy.deepcopy(original).to(memory_format=torch.channels_last)
    small.to(memory_format=torch.channels_last)
    wanted = [_wanted(original, small, block, source, tried) for block, source in _pairs(small, kept)]
    changed = next((i for i, one in enumerate(wanted) if not _same(original, small, one, tried)), len(wanted))
    results: list[Reconstructed] = []
    cache, before = _Cache(small, batches), ""
    for group in _groups(wanted[changed:], len(images)):
        fitted = [one for one in group if isinstance(one, _Wanted)]
        targets = [_targets(original, fitted, batch, number) for number, batch in enumerate(batches)] if fitted else []
        numbers = {one.place: number for number, one in enumerate(fitted)}
        for one in group:
            if isinstance(one, Reconstructed):
                results.append(one)
            else:
                if before:
                    cache.advance(before)
                number = numbers[one.place]
                results.append(_fitted(small, one, cache, [rows[number] for rows in targets]))
                before = one.place.block
    small.to(memory_format=torch.contiguous_format)
    return results


class _Cache:
    """The outputs of a fitted block, behind which later passes begin, so that no block is computed for each later one.

    Args:
        student: of which blocks are fitted in order.
        batches: of images.
    """

    def __init__(self, student: Student, batches: Sequence[torch.Tensor]) -> None:
        self.batches = batches
        self._student, self._names = student, removable(student.backbone)
        self._block, self._outputs, self._useless = "", list[torch.Tensor](), False

    @contextlib.contextmanager
    def used(self, number: int) -> Iterator[None]:
        """Let blocks before the cached one do nothing, and this one give its output for a batch, within the context."""
        names = self._names[: self._names.index(self._block) + 1] if self._block else []
        modules = [self._student.backbone.get_submodule(name) for name in names]
        for module in modules:
            module.forward = _same_as_given
        if modules:
            modules[-1].forward = lambda *args, **kwargs: self._outputs[number]
        try:
            yield
        finally:
            for module in modules:
                del module.forward

    def advance(self, block: str) -> None:
        """Keep the outputs of a later block instead, unless they are too large.

        If other parts of the model read still earlier blocks, nothing is kept from now on.
        """
        if self._useless:
            return
        kept: list[torch.Tensor] = []
        for number, batch in enumerate(self.batches):
            with self.used(number):
                [output] = outputs(self._student, [Place(block)], batch)
            assert output is not None
            if not number:
                if output[:1].numel() * 4 * sum(map(len, self.batches)) > _BYTES:
                    return
                [whole] = outputs(self._student, [Place(block)], batch)
                assert whole is not None
                if not torch.allclose(output, whole, rtol=1e-4, atol=1e-4):
                    self._block, self._outputs, self._useless = "", [], True
                    return
            kept.append(output)
        self._block, self._outputs = block, kept


def _same_as_given(images: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    return images


def _wanted(
    original: Student, small: Student, block: str, source: str, images: torch.Tensor
) -> _Wanted | Reconstructed:
    """Return how a block is fitted, or why it is not."""
    activation = last_activation(small, block, images)
    place, other = Place(block, activation), Place(source, activation)
    [given], [target] = outputs(small, [place], images), outputs(original, [other], images)
    if given is None or target is None or given.shape != target.shape:
        return Reconstructed(block, reason="its output has another shape than before")
    end = end_of(small, place, images)
    return Reconstructed(block, reason=end) if isinstance(end, str) else _Wanted(place, other, end, given.shape)


def _same(original: Student, small: Student, one: _Wanted | Reconstructed, images: torch.Tensor) -> bool:
    if isinstance(one, Reconstructed):
        return False
    [given], [target] = outputs(small, [one.place], images), outputs(original, [one.source], images)
    assert given is not None and target is not None
    return torch.allclose(given, target, rtol=1e-4, atol=1e-5)


def _groups(blocks: list[_Wanted | Reconstructed], images: int) -> Iterator[list[_Wanted | Reconstructed]]:
    """Divide the blocks so that the targets of a group take at most :data:`_BYTES`."""
    group: list[_Wanted | Reconstructed] = []
    size = 0
    for one in blocks:
        more = 0
        if isinstance(one, _Wanted):
            more = 4 * images * min(_POSITIONS * len(one.end.scale), one.shape[1:].numel())
        if group and size + more > _BYTES:
            yield group
            group, size = [], 0
        group.append(one)
        size += more
    if group:
        yield group


def _some(positions: int, number: int) -> torch.Tensor:
    """Return the positions of micro-batch ``number`` that are fitted, the same for inputs and targets."""
    generator = torch.Generator().manual_seed(number)
    return torch.randperm(positions, generator=generator)[:_POSITIONS].sort().values


def _targets(original: Student, wanted: list[_Wanted], images: torch.Tensor, number: int) -> list[torch.Tensor]:
    """Return what each block should give, ``[B, positions, C]``."""
    rows = []
    for one, output in zip(wanted, outputs(original, [one.source for one in wanted], images), strict=True):
        assert output is not None
        whole = as_rows(output, one.end)
        rows.append(whole[:, _some(whole.shape[1], number).to(whole.device)])
    return rows


def _fitted(small: Student, one: _Wanted, cache: _Cache, targets: Sequence[torch.Tensor]) -> Reconstructed:
    """Fit one block."""
    end = one.end
    device = end.scale.device
    parts = [Sums.empty(end.layer.weight[0].numel(), len(end.scale), device) for _ in range(2)]
    wanted = Sums.empty(0, len(end.scale), device)  # of the outputs held out
    for number, (batch, target) in enumerate(zip(cache.batches, targets, strict=True)):
        with cache.used(number):
            inputs, output = inputs_and_output(small, one.place, end.layer, batch)
        x, y = input_rows(inputs, end.layer), as_rows(output, end)
        some = _some(x.shape[1], number).to(device)
        x, lacking = x[:, some], target - y[:, some]
        held_out = (torch.arange(len(batch), device=device) + number * _BATCH) % _HELD_OUT == 0
        for part, rows in zip(parts, (~held_out, held_out), strict=True):
            part.add(x[rows].flatten(0, 1), lacking[rows].flatten(0, 1))
        rows = target[held_out].flatten(0, 1)
        wanted.add(rows[:, :0], rows)
    return _fit(partial(Reconstructed, one.place.block), parts, end, float(wanted.spread()))


def _fit(outcome: Callable[..., Reconstructed], parts: list[Sums], end: End, spread: float) -> Reconstructed:
    """Solve, and change the layer.

    Args:
        parts: sums of the layer's inputs and of what the block's output lacks: to fit, and held out.
        spread: sum of squared differences of the wanted outputs held out from their mean.
    """
    if not spread > 0 or not all(part.finite() for part in parts):
        return outcome(reason="its outputs are constant or not finite")
    before = 1 - float(parts[1].yy.sum()) / spread
    fit = fit_ridge(*parts)
    if fit is None:
        return outcome(before, before)
    after = 1 - (1 - fit.r2) * float(parts[1].spread()) / spread
    if not after > before:
        return outcome(before, before)
    _change(end, fit.weight, fit.bias, parts[0] + parts[1])
    return outcome(before, after)


def _change(end: End, weight: torch.Tensor, bias: torch.Tensor, sums: Sums) -> None:
    """Add ``weight`` ``[C, D]`` and ``bias`` ``[C]`` to what the layer adds to the block's output.

    BatchNorm behind it gets the statistics of the new outputs, so that it does the same in training mode.
    """
    layer, norm, scale = end.layer, end.norm, end.scale.double()
    size = scale.abs()
    used = (size > 1e-4 * size.max()).to(weight.device)
    scale = torch.where(used, scale, torch.ones_like(scale))
    changed = layer.weight.flatten(1).double() + torch.where(used, weight.T / scale, 0).T
    moved = torch.where(used, bias / scale, 0)
    layer.weight.copy_(changed.view_as(layer.weight))
    if norm is None:
        assert layer.bias is not None
        layer.bias.add_(moved)
        return
    assert norm.running_mean is not None and norm.running_var is not None
    deviation = (norm.running_var.double() + norm.eps).sqrt()
    factor = norm.weight.double() / deviation
    shift = norm.bias.double() - norm.running_mean.double() * factor + moved * factor
    mean = sums.x / sums.count
    covariance = sums.xx / sums.count - torch.outer(mean, mean)
    new_mean = changed @ mean + (layer.bias.double() if layer.bias is not None else 0)
    new_variance = ((changed @ covariance) * changed).sum(1).clamp(min=0)
    norm.running_mean.copy_(new_mean)
    norm.running_var.copy_(new_variance)
    norm.weight.copy_(factor * (new_variance + norm.eps).sqrt())
    norm.bias.copy_(shift + new_mean * factor)


def _pairs(small: Student, kept: dict[str, list[int]]) -> Iterator[tuple[str, str]]:
    """Yield the name of each block of ``small``, in order, and of the original's block whose output it should give."""
    for block in removable(small.backbone):
        container, _, place = block.rpartition(".")
        if container not in kept:
            yield block, block
            continue
        stay = kept[container]
        following = [*stay[1:], None][int(place)]
        yield block, f"{container}.{following - 1 if following is not None else -1}"
