"""Assignment of micro-batches to steps and ranks: by what they cost, or in turn."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence

from radioplat.data.order.dealing import Costs, deal_by_cost, deal_evenly, deal_in_slots

PADDING = -1
_KEPT = 4096  # steps whose dealing is kept
Kind = tuple[int, ...]  # pixels a side of the views of a micro-batch


class MicroBatchSchedule:
    """The micro-batches of each step and rank of a run; thread-safe, and the same on all ranks.

    Args:
        micro_batches: micro-batches of one global batch, without padding.
        world_size: training workers.
        kinds: returns the kinds of the micro-batches from its first argument to its second; None: they are alike.
        in_slots: ranks wait for each other after each micro-batch; dealt by cost, every rank has equally many.
        costs: by which the first steps are dealt; default: by pixels.
        by_cost: deal by cost, if there are kinds and several ranks; else in turn, and :meth:`change` has no effect.

    Attributes:
        per_rank: number of micro-batches of a step on each rank if all have equally many, padding included.
        by_cost: whether costs decide.
        fixed_until: the first step that may be dealt anew; earlier ones are read before the first step.
    """

    def __init__(
        self,
        micro_batches: int,
        world_size: int,
        kinds: Callable[[int, int], Sequence[Kind]] | None = None,
        in_slots: bool = False,
        costs: Costs | None = None,
        by_cost: bool = True,
    ) -> None:
        self.micro_batches, self.world_size, self.in_slots = micro_batches, world_size, in_slots
        self.per_rank = -(-micro_batches // world_size)
        self.fixed_until = 0
        self._kinds = kinds if world_size > 1 else None
        self.by_cost = by_cost and self._kinds is not None
        self._changes: list[tuple[int, Costs]] = [(0, costs or Costs())]  # from a step on, ascending
        self._dealt: OrderedDict[int, list[list[int]]] = OrderedDict()
        self._known_kinds: tuple[int, Sequence[Kind]] = (-1, ())  # of the last step that was asked for
        self._lock = threading.Lock()

    def change(self, step: int, costs: Costs) -> None:
        """Deal by these costs from ``step`` on, which no rank may have read yet."""
        with self._lock:
            self._changes.append((step, costs))
            for later in [known for known in self._dealt if known >= step]:
                del self._dealt[later]

    def costs_at(self, step: int) -> Costs:
        """Return the costs by which ``step`` is dealt."""
        return self._changes[self.version_at(step)][1]

    def version_at(self, step: int) -> int:
        """Return the number of changes up to ``step``."""
        return max(number for number, (first, _) in enumerate(self._changes) if first <= step)

    def next_change(self, step: int) -> int | None:
        """Return the first step after ``step`` that is dealt by other costs; None if none is known."""
        return next((first for first, _ in self._changes if first > step), None)

    def of_step(self, step: int) -> list[int]:
        """Return the micro-batches of one step, in their order, with :data:`PADDING` for ranks without."""
        real = range(step * self.micro_batches, (step + 1) * self.micro_batches)
        return [*real, *[PADDING] * (self.per_rank * self.world_size - self.micro_batches)]

    def of_rank(self, step: int, rank: int) -> list[int]:
        """Return the micro-batches of one step on one rank, at least one, in the order in which it consumes them."""
        return self._of_ranks(step)[rank]

    def kinds_of(self, step: int) -> Sequence[Kind]:
        """Return the kinds of the micro-batches of a step, in their order."""
        if self._kinds is None:
            return [()] * self.micro_batches
        known, kinds = self._known_kinds
        if known != step:
            kinds = self._kinds(step * self.micro_batches, (step + 1) * self.micro_batches)
            self._known_kinds = (step, kinds)
        return kinds

    def _of_ranks(self, step: int) -> list[list[int]]:
        with self._lock:
            if (known := self._dealt.get(step)) is not None:
                return known
        version = self.version_at(step)
        dealt = self._deal(step, self._changes[version][1])
        with self._lock:
            if version == self.version_at(step):
                self._dealt[step] = dealt
                if len(self._dealt) > _KEPT:
                    self._dealt.popitem(last=False)
        return dealt

    def deal(self, kinds: Sequence[Kind], costs: Costs) -> list[list[int]]:
        """Return the places in a step of the micro-batches of each rank, and :data:`PADDING`."""
        if not self.by_cost:
            dealt = deal_evenly(self.micro_batches, self.world_size)
            return [own if len(own) == self.per_rank else [*own, PADDING] for own in dealt]
        each = [costs.of(kind) for kind in kinds]
        slowness = costs.slowness or (1.0,) * self.world_size
        if self.in_slots:
            return deal_in_slots(each, slowness, PADDING)
        return [own or [PADDING] for own in deal_by_cost(each, slowness)]

    def _deal(self, step: int, costs: Costs) -> list[list[int]]:
        dealt = self.deal(self.kinds_of(step) if self.by_cost else (), costs)
        first = step * self.micro_batches
        return [[first + place if place >= 0 else PADDING for place in own] for own in dealt]
