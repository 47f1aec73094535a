"""Sums of the numbers of one step, over micro-batches and ranks, with one all-reduce and one read from the device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.distributed as dist

from radioplat.common import collectives
from radioplat.common.exact_sums import rounded

LOSS = "loss"
_EXACT = -30  # exponent of the unit of losses that are added exactly
Name = tuple[str, str]  # a kind of numbers, and a name of that kind


class _Losses(NamedTuple):
    """The losses of a micro-batch (-1: padding) or of a piece of it, fp32 ``[L]``, and the share of the piece."""

    micro_batch: int
    share: float
    values: torch.Tensor


class StepSums:
    """Add up numbers of a step by kind and name; all ranks must call :meth:`start` and :meth:`finish` alike.

    Losses are added on the device, in float64 as Python would add them, so that the host does not wait for a forward. A
    micro-batch launches one kernel for it; the rest is done once a step. All ranks hold a table of the names seen so
    far, in the same order; the numbers travel as one float64 vector in that order. A rank with a name that is not in
    the table says so in the vector: then all ranks exchange their names once and send the vector again.

    Args:
        exact: round losses to multiples of 2**-30, so that sums up to 2**23 do not depend on the order.

    Attributes:
        totals: after :meth:`finish`, by kind the sums over all ranks by name; without names that no rank has added to.
        not_finite: after :meth:`finish`, names of the losses that were not finite in any forward of any rank, sorted.
    """

    def __init__(self, device: torch.device, exact: bool = False) -> None:
        self._device, self._exact = device, exact
        self._table: list[Name] = []
        self._indices: dict[tuple[tuple[Name, ...], int], torch.Tensor] = {}
        self._on_gpu = device.type == "cuda"
        self._side = torch.cuda.Stream(device) if self._on_gpu else None
        self._copied = torch.cuda.Event() if self._on_gpu else None
        self.begin()

    def begin(self) -> None:
        """Forget the numbers of the previous step."""
        self._numbers: dict[Name, float] = {}
        self._added: dict[tuple[Name, ...], list[_Losses]] = {}
        self.totals: dict[str, dict[str, float]] = {}
        self.not_finite: list[str] = []

    def count(self, kind: str, numbers: Mapping[str, float]) -> None:
        """Add numbers of the host."""
        for name, number in numbers.items():
            self._numbers[kind, name] = self._numbers.get((kind, name), 0.0) + number

    def add(self, losses: Mapping[str, torch.Tensor], share: float, micro_batch: int) -> None:
        """Add ``share`` times each loss, a scalar on the device, and note which are not finite.

        Args:
            micro_batch: its number; of padding, -1, only the check for finite numbers counts.
        """
        names = tuple((LOSS, name) for name in losses)
        values = torch.stack([value.detach().float() for value in losses.values()])
        self._added.setdefault(names, []).append(_Losses(micro_batch, share, values))

    def start(self) -> None:
        """Begin to add up the ranks' numbers; nothing may be added afterwards."""
        self._send(len(self._names() - set(self._table)))

    def finish(self) -> None:
        """Wait for the sums, and set the attributes."""
        received = self._receive()
        if received[-1]:  # a name is new to some rank
            names = set().union(*collectives.gather_objects(self._names()))
            self._table += sorted(names - set(self._table))
            self._send(0)
            received = self._receive()
        size = len(self._table)
        present = zip(self._table, received[:size], received[size : 2 * size], strict=True)
        for (kind, name), total, ranks in present:
            if ranks:
                self.totals.setdefault(kind, {})[name] = total
        flags = zip(self._table, received[2 * size : -1], strict=True)
        self.not_finite = sorted(name for (_, name), flag in flags if flag)

    def not_finite_in(self, micro_batch: int) -> list[str]:
        """Return the names of this rank's losses of a micro-batch that were not finite; this waits for the device."""
        names: dict[str, None] = {}
        for known, added in self._added.items():
            for each in added:
                if each.micro_batch == micro_batch:
                    finite = zip(known, torch.isfinite(each.values).tolist(), strict=True)
                    names |= dict.fromkeys(name for (_, name), is_finite in finite if not is_finite)
        return list(names)

    def _names(self) -> set[Name]:
        return set(self._numbers).union(*self._added)

    def _send(self, unknown: int) -> None:
        """Start the all-reduce of the vector: sums, how many ranks have each, flags, and ``unknown``."""
        size = len(self._table)
        known = set(self._table)
        mine = self._names()
        host = torch.tensor(
            [
                *(self._numbers.get(name, 0.0) for name in self._table),
                *(float(name in mine) for name in self._table),
                *[0.0] * size,
                float(unknown),
            ],
            dtype=torch.float64,
            pin_memory=self._on_gpu,
        )
        self._host = host  # pinned memory must outlive the copy
        self._vector = host.to(self._device, non_blocking=True)
        for names, added in self._added.items():
            if known.issuperset(names):  # else the vector is sent again
                self._vector.index_add_(0, self._index(names), _totals(added, self._exact))
        self._work: dist.Work | None = None
        if self._side is None:
            self._reduce()
            return
        # On a stream of its own: the host then waits for the last forward, not for the backward queued behind it.
        self._side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._side):
            self._reduce()
            if self._work is not None:
                self._work.wait()
            self._received = torch.empty(len(host), dtype=torch.float64, pin_memory=True)
            self._received.copy_(self._vector, non_blocking=True)
            assert self._copied is not None
            self._copied.record(self._side)

    def _reduce(self) -> None:
        if not collectives.alone():
            self._work = dist.all_reduce(self._vector, async_op=True)

    def _receive(self) -> list[float]:
        if self._copied is not None:
            self._copied.synchronize()
            return self._received.tolist()
        if self._work is not None:
            self._work.wait()
        return self._vector.tolist()

    def _index(self, names: tuple[Name, ...]) -> torch.Tensor:
        """Return the places of ``names`` in the vector on the device, for their sums and then for their flags."""
        size = len(self._table)
        if (names, size) not in self._indices:
            places = {name: place for place, name in enumerate(self._table)}
            mine = [places[name] for name in names]
            self._indices[names, size] = torch.tensor([*mine, *(2 * size + place for place in mine)]).to(self._device)
        return self._indices[names, size]


def _totals(added: list[_Losses], exact: bool) -> torch.Tensor:
    """Return the sums of losses ``[L]`` over micro-batches, and how often each was not finite: float64 ``[2 L]``."""
    values = torch.stack([each.values for each in added]).double()
    flags = (~torch.isfinite(values)).double().sum(0)
    shares = [each.share if each.micro_batch >= 0 else 0.0 for each in added]
    if any(share != 1 for share in shares):
        # Not a product with 0 for padding, whose losses may be infinite.
        real = [values[i] if share == 1 else values[i] * share for i, share in enumerate(shares) if share]
        values = torch.stack(real) if real else torch.zeros_like(values)
    if exact:
        values = rounded(values, _EXACT)
    # Not `sum`, whose order differs: numbers are those that Python would add up, one micro-batch after the other.
    return torch.cat([values.cumsum(0)[-1], flags])
