"""Measure what micro-batches cost on each rank, and how unlike the ranks' shares are; deal later steps by it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from radioplat.data.batch import Batch
from radioplat.data.order.dealing import Costs, end_of, key_of
from radioplat.data.order.micro_batch_schedule import MicroBatchSchedule
from radioplat.design.memory import AHEAD
from radioplat.spec.schema.cluster import Placement
from radioplat.spec.schema.root import Spec
from radioplat.training.feed.feeder import prefetch_depth
from radioplat.training.hooks.step_hook import StepHook
from radioplat.training.hooks.step_record import CONTINUE, IMBALANCE, StepDecision, StepRecord
from radioplat.training.watch.rank_context import RankContext

LOOK = 10  # steps between two decisions
LEAST_GAIN = 0.08  # of the time of a step: less is not worth another start of the streams
OPEN_S = 10.0  # time in which a stream can be opened
LONGEST_LEAD = 30  # steps from a decision to the first that is dealt anew
ALIKE = 0.15  # slowness is rounded to multiples of this: less is noise on a machine with other work
_NEW = 0.1  # weight of a step in the means, at least


class MicroBatchCosts(StepHook):
    """Time the micro-batches of this rank; from the sums over all ranks, all of them decide alike.

    The last backward of a step waits for other ranks, and with slots each one does: there the forward's time stands for
    the whole. At ZeRO 3 forwards wait, too, and nothing is measured; sizes alone decide. Teachers that compute in the
    training thread, those in the workers on a CPU, are part of a micro-batch and of its forward.

    Args:
        schedule: is changed.
        say: gets a line at each change, and whether it is a warning.
    """

    name = "dealing"

    def __init__(
        self, spec: Spec, context: RankContext, schedule: MicroBatchSchedule, say: Callable[[str, bool], None]
    ):
        self._context, self._schedule, self._say = context, schedule, say
        self._measures = context.world_size > 1 and not (schedule.in_slots and spec.train.zero_stage == 3)
        # Steps that some rank may have read already: each has at least one micro-batch.
        self._read_ahead = prefetch_depth(spec) + AHEAD + 4
        self._timers: list[_Timer] = []
        self._before: list[_Timer] = []  # of the step before, whose work on the device has ended
        self._forwards: dict[str, float] = {}  # seconds by kind
        self._wholes: dict[str, float] = {}  # seconds by kind
        teachers = [service.placement for service in spec.teachers.values()]
        inline = not context.on_cluster or Placement.inline in teachers
        self._with_teachers = inline and context.device.type == "cpu"
        self._ratios = [1.0] * context.world_size  # time of a rank's forwards over what is usual for their kinds
        self._steps = 0  # in these
        self._imbalance = 0.0
        self._since = 0.0  # when the micro-batch before ended, or the step began

    @property
    def _seconds(self) -> dict[str, float]:
        """Seconds of a micro-batch by kind; of kinds that were always the last of a step, by their forwards."""
        both = [kind for kind in self._wholes if kind in self._forwards]
        ratio = sum(map(self._wholes.__getitem__, both)) / sum(map(self._forwards.__getitem__, both)) if both else 1.0
        return {kind: ratio * forward for kind, forward in self._forwards.items()} | self._wholes

    @property
    def _slowness(self) -> list[float]:
        """Time of each rank over that of the rank in the middle; of two, over that of the faster one."""
        ordered = sorted(self._ratios)
        middle = ordered[len(ordered) // 2] if len(ordered) > 2 else ordered[0]
        return [ratio / middle for ratio in self._ratios]

    def begin_step(self, step: int) -> None:
        """Begin to measure a step."""
        self._before, self._timers = self._timers, []
        self._since = time.perf_counter()

    def begin_micro_batch(self, step: int, batch: Batch) -> None:
        """Start the time of a micro-batch."""
        if self._measures and batch.micro_batch >= 0:
            place = batch.micro_batch % self._schedule.micro_batches
            timer = _Timer(key_of(self._schedule.kinds_of(step)[place]), self._context.device)
            if self._with_teachers:
                timer.begin = self._since
            self._timers.append(timer)

    def losses(self, step: int, batch: Batch, losses: Mapping[str, torch.Tensor], last: bool) -> StepDecision:
        """Note the end of the forward; of a micro-batch in pieces, that of the first counts."""
        if self._measures and batch.micro_batch >= 0:
            self._timers[-1].forward_ends(waits=last or self._schedule.in_slots)
        return CONTINUE

    def end_micro_batch(self, step: int, batch: Batch) -> None:
        """Note the end of the micro-batch."""
        if self._measures and self._timers:
            self._timers[-1].ends()
        self._since = time.perf_counter()

    def sums(self) -> dict[str, float]:
        """Return seconds and counts by kind, and the seconds of this rank's forwards beside those of usual ranks."""
        numbers: dict[str, float] = {}
        rank = self._context.rank
        for timer in self._before:
            if (forward := timer.seconds_of_forward()) is None:
                continue
            named = {
                f"forward/{timer.kind}": forward,
                f"forwards/{timer.kind}": 1.0,
                f"took/{rank}": forward,
                f"usual/{rank}": self._forwards.get(timer.kind, 0.0),
            }
            if (whole := timer.seconds()) is not None:
                named |= {f"whole/{timer.kind}": whole, f"wholes/{timer.kind}": 1.0}
            for name, value in named.items():
                numbers[name] = numbers.get(name, 0.0) + value
        return numbers

    def after_step(self, record: StepRecord) -> None:
        """Add the step to the means, and decide now and then whether to deal anew."""
        if not self._measures:
            return
        sums = {name.removeprefix("dealing/"): n for name, n in record.sums.items() if name.startswith("dealing/")}
        self._learn(sums)
        self._imbalance = self._imbalance_of(record.step - 1, sums)
        if self._schedule.by_cost and record.step % LOOK == LOOK - 1 and self._seconds:
            self._decide(record.step + 1, sums)

    def figures(self) -> dict[str, float]:
        """Return the time of the slowest rank over that of the mean one, of the step before."""
        return {IMBALANCE: self._imbalance} if self._imbalance else {}

    def state_dict(self) -> dict[str, Any]:
        """Return the seconds by kind; the speed of ranks is measured anew, since others may have them."""
        return {"micro_batch_seconds": self._seconds} if self._measures else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the seconds."""
        known = self._forwards if self._schedule.in_slots else self._wholes
        known |= state["micro_batch_seconds"]

    def _learn(self, sums: Mapping[str, float]) -> None:
        took = [sums.get(f"took/{rank}", 0.0) for rank in range(self._context.world_size)]
        usual = [sums.get(f"usual/{rank}", 0.0) for rank in range(self._context.world_size)]
        if all(usual):
            self._steps += 1
            new = max(_NEW, 1 / self._steps)  # a plain mean at first
            each = zip(self._ratios, took, usual, strict=True)
            self._ratios = [(1 - new) * old + new * seconds / known for old, seconds, known in each]
        for name, seconds in sums.items():
            column, _, kind = name.partition("/")
            if (means := {"forward": self._forwards, "whole": self._wholes}.get(column)) is not None:
                mean = seconds / sums[f"{column}s/{kind}"]
                means[kind] = (1 - _NEW) * means.get(kind, mean) + _NEW * mean

    def _imbalance_of(self, step: int, sums: Mapping[str, float]) -> float:
        """Return when the ranks had ended a step, over the mean of their times; 0.0 if it is not known."""
        schedule, world = self._schedule, self._context.world_size
        took = [sums.get(f"took/{rank}", 0.0) for rank in range(world)]
        if not all(took):
            return 0.0
        if not schedule.in_slots:
            return max(took) * world / sum(took)
        # Where ranks wait after each micro-batch, their sums do not tell how long: what is usual stands for the times.
        costs = Costs.measured(self._seconds)
        each = [costs.of(kind) for kind in schedule.kinds_of(step)]
        own = [[n % schedule.micro_batches if n >= 0 else n for n in schedule.of_rank(step, r)] for r in range(world)]
        total = sum(
            slow * sum(each[place] for place in places if place >= 0)
            for places, slow in zip(own, self._slowness, strict=True)
        )
        return end_of(own, each, self._slowness, in_slots=True) * world / total

    def _decide(self, step: int, sums: Mapping[str, float]) -> None:
        """Deal anew from a later step on if that is expected to save time."""
        schedule, world = self._schedule, self._context.world_size
        took = max(sums.get(f"took/{rank}", 0.0) for rank in range(world))
        lead = math.ceil(OPEN_S / (3 * took)) if took else LONGEST_LEAD  # a step takes some three forwards
        first = max(step + max(self._read_ahead, min(lead, LONGEST_LEAD)), schedule.fixed_until + self._read_ahead)
        if schedule.next_change(step) is not None:
            return  # one is on its way
        measured = Costs.measured(
            self._seconds, tuple(1 + ALIKE * round((slow - 1) / ALIKE) for slow in self._slowness)
        )
        now, then = (self._end(schedule.costs_at(step), measured), self._end(measured, measured))
        if then < (1 - LEAST_GAIN) * now:
            schedule.change(first, measured)
            slow = ", ".join(f"{slow:.2f}" for slow in self._slowness) if world <= 16 else f"{max(self._slowness):.2f}"
            self._say(
                f"from step {first + 1} on micro-batches are dealt anew, by what they were measured to cost: steps are "
                f"expected to take {100 * then / now:.0f} % of the time (ranks take {slow} times as long as usual)",
                False,
            )

    def _end(self, dealt_by: Costs, costs: Costs) -> float:
        """Return how long the ranks together would compute for some steps dealt by one and costing the other."""
        total, schedule = 0.0, self._schedule
        for step in range(LOOK):
            kinds = schedule.kinds_of(step)
            dealt = schedule.deal(kinds, dealt_by)
            total += end_of(dealt, [costs.of(kind) for kind in kinds], costs.slowness, schedule.in_slots)
        return total


class _Timer:
    """Times of one micro-batch, on the device."""

    def __init__(self, kind: str, device: torch.device) -> None:
        self.kind = kind
        self._on_gpu = device.type == "cuda"
        self.begin = self._now()
        self._forward: Any = None
        self._end: Any = None
        self._waits = False

    def _now(self) -> Any:  # noqa: ANN401
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def forward_ends(self, waits: bool) -> None:
        """End the time of the forward, at the first call; ``waits``: the backward may wait for other ranks."""
        self._forward = self._now() if self._forward is None else self._forward
        self._waits |= waits

    def ends(self) -> None:
        """End the time of the micro-batch."""
        self._end = self._now()

    def seconds_of_forward(self) -> float | None:
        """Return the time of the forward; None if it did not happen."""
        return None if self._forward is None else self._between(self._forward)

    def seconds(self) -> float | None:
        """Return the time of forward and backward; None if they did not happen, or waited for other ranks."""
        return None if self._waits or self._end is None else self._between(self._end)

    def _between(self, end: Any) -> float:  # noqa: ANN401
        return self.begin.elapsed_time(end) / 1000 if self._on_gpu else end - self.begin
