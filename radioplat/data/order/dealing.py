"""Deal the micro-batches of a step to ranks by what they cost."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_LITTLE = 5e-3  # of the time of a step


@dataclass(frozen=True)
class Costs:
    """Costs of micro-batches.

    Attributes:
        seconds: of a micro-batch on a rank of the usual speed, by its kind (its views' pixels a side); any unit.
        unit: seconds for each squared pixel of the student's view, for kinds that are not in ``seconds``.
        slowness: of each rank: 2.0 takes twice as long as the usual 1.0; empty: all ranks are alike.
    """

    seconds: dict[tuple[int, ...], float] = field(default_factory=dict)
    unit: float = 1.0
    slowness: tuple[float, ...] = ()

    @staticmethod
    def measured(seconds: Mapping[str, float], slowness: tuple[float, ...] = ()) -> Costs:
        """Return costs by the measured seconds of kinds, written as by :func:`key_of`; others follow their pixels."""
        known = {tuple(map(int, key.split(","))): value for key, value in seconds.items()}
        unit = sum(value / kind[0] ** 2 for kind, value in known.items()) / len(known) if known else 1.0
        return Costs(known, unit, slowness)

    def of(self, kind: tuple[int, ...]) -> float:
        """Return the cost of a micro-batch of this kind."""
        known = self.seconds.get(kind)
        return self.unit * kind[0] ** 2 if known is None else known


def key_of(kind: tuple[int, ...]) -> str:
    """Return a kind as text."""
    return ",".join(map(str, kind))


def deal_evenly(count: int, ranks: int) -> list[list[int]]:
    """Return the micro-batches 0 to ``count`` of each rank: number j goes to rank j mod ``ranks``."""
    return [list(range(rank, count, ranks)) for rank in range(ranks)]


def deal_by_cost(costs: Sequence[float], slowness: Sequence[float]) -> list[list[int]]:
    """Return the micro-batches of each rank so that the last rank ends early: the longest first, uneven in number.

    Each goes to the rank that would end first with it (Gonzalez, Ibarra and Sahni 1977, "Bounds for LPT schedules on
    uniform processors"). Then single ones are moved from, and swapped with, the rank that ends last while that helps.
    Every rank gets one, if there are as many.
    """
    ranks = len(slowness)
    dealt: list[list[int]] = [[] for _ in slowness]
    # Ranks that are equally slow, by when they end; in heaps, since large runs have thousands of micro-batches.
    alike: dict[float, list[tuple[float, int]]] = {}
    for rank, slow in enumerate(slowness):
        alike.setdefault(slow, []).append((0.0, rank))
    for number in sorted(range(len(costs)), key=lambda number: -costs[number]):
        ends = [(ended[0][0] + costs[number] * slow, ended[0][1], slow) for slow, ended in alike.items()]
        end, rank, slow = min(ends)
        dealt[rank].append(number)
        heapq.heapreplace(alike[slow], (end, rank))
    while len(costs) >= ranks and not all(dealt):
        longest = max(range(ranks), key=lambda rank: len(dealt[rank]))
        dealt[dealt.index([])].append(dealt[longest].pop())
    _improve(dealt, costs, slowness)
    return [sorted(own) for own in dealt]


def deal_in_slots(costs: Sequence[float], slowness: Sequence[float], padding: int) -> list[list[int]]:
    """Return the micro-batches of each rank, equally many, so that those at one place cost alike.

    For engines that wait for all ranks after each micro-batch. The slowest rank gets the cheapest of a place; places
    that are left have ``padding``.
    """
    ranks = len(slowness)
    fastest = sorted(range(ranks), key=lambda rank: (slowness[rank], rank))
    dealt: list[list[int]] = [[] for _ in slowness]
    ordered = sorted(range(len(costs)), key=lambda number: -costs[number])
    for first in range(0, len(ordered), ranks):
        slot = ordered[first : first + ranks]
        for place, rank in enumerate(fastest):
            dealt[rank].append(slot[place] if place < len(slot) else padding)
    return dealt


def end_of(dealt: Sequence[Sequence[int]], costs: Sequence[float], slowness: Sequence[float], in_slots: bool) -> float:
    """Return when the last rank ends its micro-batches; padding (negative numbers) costs nothing."""
    each = [
        [costs[number] * slow if number >= 0 else 0.0 for number in own]
        for own, slow in zip(dealt, slowness, strict=True)
    ]
    return sum(map(max, zip(*each, strict=True))) if in_slots else max(map(sum, each))


def _improve(dealt: list[list[int]], costs: Sequence[float], slowness: Sequence[float]) -> None:
    """Move or swap micro-batches of the rank that ends last, until nothing makes it end earlier, or little could."""
    least = sum(costs) / sum(1 / slow for slow in slowness)  # if all ranks ended together
    for _ in range(len(costs)):  # each round shortens the end; this many are enough in practice
        ends = [sum(costs[n] for n in own) * slow for own, slow in zip(dealt, slowness, strict=True)]
        last = max(range(len(dealt)), key=lambda rank: ends[rank])
        if ends[last] <= (1 + _LITTLE) * least:
            return
        best, change = ends[last] * (1 - 1e-9), None
        for rank, own in enumerate(dealt):
            if rank == last:
                continue
            for mine in dealt[last]:
                for theirs in (None, *own):
                    if theirs is None and len(dealt[last]) == 1:
                        continue
                    shift = costs[mine] - (0.0 if theirs is None else costs[theirs])
                    end = max(ends[last] - shift * slowness[last], ends[rank] + shift * slowness[rank])
                    if end < best:
                        best, change = end, (rank, mine, theirs)
        if change is None:
            return
        rank, mine, theirs = change
        dealt[last].remove(mine)
        dealt[rank].append(mine)
        if theirs is not None:
            dealt[rank].remove(theirs)
            dealt[last].append(theirs)
