"""A step hook that stops the training loop between two steps, lets the loop by hand take its turn, and reads the clock.

``train.hooks`` names :class:`Turns`. What it shall do lies in :data:`plan`, because a run builds its hooks itself.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from benchmarks.gpu.interleave import ROUNDS, WARM_UP, agreed, block, wait
from benchmarks.gpu.trace import HostSyncs, Recording
from radioplat.training.hooks.own_hook import HookContext
from radioplat.training.hooks.step_hook import StepHook
from radioplat.training.hooks.step_record import StepRecord

LOOKED_AT = 3  # steps that the profiler records


class Done(BaseException):
    """Raised out of the training loop when everything is measured; no error, so nothing may catch it as one."""


@dataclass
class Plan:
    """What is measured, and the results.

    Attributes:
        device: ``cuda`` or ``cpu``.
        by_hand: a step of the loop written by hand; None for a run without it.
        seconds: for all rounds.
        micro_batches: of a step and a rank.
        left_out: steps at the beginning of each block that are not timed: the feeder works ahead of the training loop
            while it stands still, so their data were ready.
        times: seconds of a step, one for each round, by side.
        figures: of the trace, and waits of our loop.
        periods: seconds of each of our steps, by number; of ``stalls``.
        steps: if above 0 so many steps are run, and only :attr:`periods` are noted.
    """

    device: str
    by_hand: Callable[[], object] | None
    seconds: float
    micro_batches: int
    left_out: int
    steps: int = 0
    times: dict[str, list[float]] = field(default_factory=lambda: {"ours": [], "by_hand": []})
    figures: dict[str, Any] = field(default_factory=dict)
    periods: dict[int, float] = field(default_factory=dict)


plan: Plan | None = None


class Turns(StepHook):
    """Measure as :data:`plan` says, and end the run by :class:`Done`."""

    def __init__(self, context: HookContext) -> None:
        assert plan is not None, "a benchmark sets the plan before it starts the run"
        self._plan, self._left = plan, 0
        self._course = self._periods() if plan.steps else self._in_turn()
        self._records: list[StepRecord] = []
        self._timed = False

    def begin_step(self, step: int) -> None:
        """Go on with the course when the steps that it waits for are over."""
        if not self._left:
            self._left = next(self._course, 0)
            if not self._left:
                raise Done
        self._left -= 1

    def after_step(self, record: StepRecord) -> None:
        """Keep the record of a timed step."""
        if self._timed:
            self._records.append(record)

    def _periods(self) -> Iterator[int]:
        """Note the period of each step; yield the number of our steps to run next."""
        yield WARM_UP
        for number in range(WARM_UP, WARM_UP + self._plan.steps):
            wait(self._plan.device)
            begin = time.perf_counter()
            yield 1
            wait(self._plan.device)
            self._plan.periods[number] = time.perf_counter() - begin

    def _in_turn(self) -> Iterator[int]:
        """Run rounds of our steps and of steps by hand; yield the number of our steps to run next."""
        plan, device = self._plan, self._plan.device
        yield WARM_UP
        each, counts = plan.seconds / ROUNDS / 2, {}
        begin = self._now()
        yield plan.left_out + 1
        counts["ours"] = self._count(each, (self._now() - begin) / (plan.left_out + 1))
        if plan.by_hand is not None:
            for _ in range(WARM_UP):
                plan.by_hand()
            counts["by_hand"] = self._count(each, block(plan.by_hand, 1, device))
        for _ in range(ROUNDS):
            yield plan.left_out + 1
            self._timed, begin = True, self._now()
            yield counts["ours"]
            plan.times["ours"].append((self._now() - begin) / counts["ours"])
            self._timed = False
            if plan.by_hand is not None:
                for _ in range(plan.left_out + 1):  # until the feeder has filled its queue, and stands still
                    plan.by_hand()
                plan.times["by_hand"].append(block(plan.by_hand, counts["by_hand"], device))
        self._summarise()
        for watch in (Recording(device), HostSyncs(device)):
            yield plan.left_out + 1
            watch.start()
            yield LOOKED_AT
            seconds = LOOKED_AT * statistics.median(plan.times["ours"])
            plan.figures |= watch.stop(LOOKED_AT * plan.micro_batches, seconds)

    def _now(self) -> float:
        wait(self._plan.device)
        return time.perf_counter()

    def _count(self, seconds: float, once: float) -> int:
        return max(1, round(seconds / max(agreed(once, self._plan.device), 1e-6)))

    def _summarise(self) -> None:
        """Note the shares of time in which our steps waited, and the teachers' seconds over a step's."""
        records = self._records
        period = statistics.fmean(record.period for record in records)
        seconds: dict[str, float] = {}
        for record in records:
            for name, value in record.teacher_seconds.items():
                seconds[name] = seconds.get(name, 0.0) + value / len(records)
        self._plan.figures |= {
            "waited_for_data": statistics.fmean(record.wait_data for record in records) / period,
            "waited_for_teachers": statistics.fmean(record.wait_teachers for record in records) / period,
            "teacher_seconds_over_step": {name: value / period for name, value in seconds.items()},
        }
