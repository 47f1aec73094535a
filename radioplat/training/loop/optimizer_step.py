"""Run one optimizer step on one rank: its micro-batches through the engine, with calls of the hooks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import torch

from radioplat.data.batch import Batch
from radioplat.data.order.micro_batch_schedule import PADDING, MicroBatchSchedule
from radioplat.design.run import Run
from radioplat.design.stages import schedule_at
from radioplat.errors import TrainingError
from radioplat.objectives.micro_batch import MicroBatch
from radioplat.objectives.objective import Objective, StepContext
from radioplat.objectives.pieces import in_pieces
from radioplat.optim.optimizer import set_rates
from radioplat.spec.resolved.reduction import is_exact
from radioplat.training.engine.cpu_bf16 import arithmetic
from radioplat.training.engine.engine import Engine
from radioplat.training.feed.arrival import Arrival
from radioplat.training.feed.micro_batches import MicroBatches
from radioplat.training.guards import out_of_memory
from radioplat.training.hooks.step_record import StepRecord
from radioplat.training.loop.run_hooks import RunHooks
from radioplat.training.watch.phases import COLLECTIVE, DATA, Phases
from radioplat.training.watch.rank_context import RankContext

MOST_REPEATS = 4  # of a step whose sums of gradients were not exact; one is usual in the first step


class OptimizerStep:
    """Run optimizer steps; every rank must call it for the same steps.

    A step is a generator, so that several students can learn from one micro-batch after another in turn.

    Args:
        home: folder of the run's records of memory that ran out.
        engine: the engine around ``objective``.
        halvings: how often each micro-batch is halved because memory ran out before.
        attempt: number of this start, stored if memory runs out.
        schedule: which rank has which micro-batch.
        held: seconds so far in which the stream has waited for other students.
    """

    def __init__(
        self,
        run: Run,
        home: Path,
        context: RankContext,
        objective: Objective,
        engine: Engine,
        hooks: RunHooks,
        batches: MicroBatches,
        phases: Phases,
        halvings: int,
        attempt: int,
        schedule: MicroBatchSchedule,
        held: Callable[[], float],
    ) -> None:
        self._run, self._home, self._context, self._schedule = run, home, context, schedule
        self._objective, self._engine, self._hooks, self._batches = objective, engine, hooks, batches
        self._phases, self._halvings, self._attempt, self._held = phases, halvings, attempt, held
        self._exact = is_exact(run.spec.train)
        self._sums = hooks.step_sums
        self._shared = False  # whether the step's numbers were given to the other ranks
        self._ended: float | None = None  # when the step before ended

    def leave_out(self, seconds: float) -> None:
        """Do not count ``seconds``, spent since the last step on something else, in the next step's period."""
        if self._ended is not None:
            self._ended += seconds

    def parts(self, step: int, feed: Iterator[Arrival]) -> Generator[None, None, StepRecord]:
        """Run global ``step`` on micro-batches from ``feed``; yield after each, and return the step's record.

        The record is reduced over all ranks. Time that passes outside of the generator is not in its seconds.

        Raises:
            TrainingError: the stream ended or differs from the sample order, or a hook ended the run.
            OutOfMemory: on this rank only.
        """
        begin = time.perf_counter()
        outside = 0.0
        record = StepRecord(step, self._set_learning_rate(step))
        expected = self._schedule.of_rank(step, self._context.rank)
        self._sums.begin()
        self._shared = False
        self._hooks.begin_step(step)
        feed = self._begin_objective(step, feed, len(expected))
        arrived = self._arrived(record, feed, expected)
        if self._hooks.needs_step_targets:
            arrived = iter(list(arrived))
            with self._phases(COLLECTIVE):
                self._hooks.targets_arrived(step)
        kept: list[tuple[int, float, MicroBatch]] = []  # for the case that the step has to be computed again
        for place, (batch, micro) in enumerate(arrived):
            self._hooks.begin_micro_batch(step, batch)
            if self._exact:
                kept.append((expected[place], self._scale(batch), micro))
            # After a decision to skip the step, its remaining micro-batches are still read from the stream.
            if not record.skipped:
                self._seed_draws(step, expected[place])
                self._learn(batch, micro, record, last=place == len(expected) - 1)
            if batch.micro_batch >= 0:
                self._hooks.end_micro_batch(step, batch)
            del batch, micro  # freed while others compute
            paused = time.perf_counter()
            yield
            outside += time.perf_counter() - paused
            self._phases.at(step, place)
        repeats = 0
        while not record.skipped and self._engine.must_repeat():
            if (repeats := repeats + 1) > MOST_REPEATS:
                raise TrainingError(
                    f"step {step}: gradients could not be added exactly, although the step was computed "
                    f"{MOST_REPEATS + 1} times; their magnitudes differ each time",
                    where="train.reduction",
                    hint="Set train.reduction to fast; or lower the rate, if the losses of the last steps grew.",
                )
            with self._watched(step):
                self._repeat(step, kept)
        if record.skipped:
            if not self._shared:
                self._share(record)
                self._reduce(record)
                if record.not_finite:  # the spec's policy applies, also if a user's hook skips the step
                    record.decision = self._hooks.non_finite.before_update(record)
            record.values = {}
            self._engine.discard_gradients()
        else:
            # Finite losses may have non-finite gradients; the engine then does not update the weights. The samples of
            # such a step (also of an fp16 overflow) count as consumed.
            record.moved = self._engine.was_step_applied()
        self._hooks.end_step(record)
        now = time.perf_counter()
        record.seconds, record.period = now - begin - outside, now - (self._ended or begin)
        self._ended = now
        self._hooks.after_step(record)
        return record

    def _share(self, record: StepRecord) -> None:
        """Start to add up the step's numbers over the ranks."""
        self._shared = True
        record.share(self._sums, self._hooks.sums())

    def _reduce(self, record: StepRecord) -> None:
        """Wait for the sums over the ranks: the only time in a step that the host waits for the device."""
        with self._phases(COLLECTIVE):
            record.reduce(self._sums, self._run.micro_batches)

    def _arrived(
        self, record: StepRecord, feed: Iterator[Arrival], expected: Sequence[int]
    ) -> Iterator[tuple[Batch, MicroBatch]]:
        """Yield the step's micro-batches as they and their answers arrive; add the time of waiting to ``record``."""
        for place, number in enumerate(expected):
            self._phases.at(record.step, place)
            waited, held = time.perf_counter(), self._held()
            with self._phases(DATA):
                arrival = _next(record.step, feed)
            elapsed = time.perf_counter() - waited
            held = min(self._held() - held, elapsed)
            record.wait_students += held
            record.wait_data += elapsed - held
            with self._watched(record.step):  # copies to the device may find no memory
                micro = self._batches.micro_batch(record.step, number, arrival, record)
            record.wait += time.perf_counter() - waited
            yield arrival.batch, micro

    def _begin_objective(self, step: int, feed: Iterator[Arrival], count: int) -> Iterator[Arrival]:
        """Call the objective's ``begin_step``, with the step's ``count`` micro-batches if it needs all of them.

        Returns:
            An iterator over all of ``feed``, including those micro-batches.
        """
        arrived: list[Arrival] = []
        if self._objective.needs_whole_step:
            with self._phases(DATA):
                arrived = [_next(step, feed) for _ in range(count)]
        with self._phases(COLLECTIVE):
            self._objective.begin_step(StepContext(step, [arrival.batch for arrival in arrived]))
        return chain(arrived, feed)

    def _learn(self, batch: Batch, micro: MicroBatch, record: StepRecord, last: bool) -> None:
        """Run forward and backward, and after the ``last`` micro-batch the update, unless a hook skips the step.

        The ranks' numbers are added up while the last backward runs.
        """
        engine, step, scale = self._engine, record.step, self._scale(batch)
        with self._watched(step):
            pieces = in_pieces(micro, 2**self._halvings)
            for number, (share, piece) in enumerate(pieces):
                ends = last and number == len(pieces) - 1
                losses = self._forward(piece)
                self._sums.add(losses, share, batch.micro_batch)
                with self._phases(COLLECTIVE):
                    record.decision = self._hooks.losses(step, batch, losses, ends)
                if record.skipped:
                    return
                if ends:
                    self._share(record)
                self._backward(losses, scale * share, last=ends)
                if ends:
                    self._reduce(record)
                    with self._phases(COLLECTIVE):
                        record.decision = self._hooks.before_update(record)
                    if record.skipped:
                        return
                engine.step()

    def _forward(self, piece: MicroBatch) -> dict[str, torch.Tensor]:
        with arithmetic(self._run.spec, self._context.device):
            return self._engine(piece)

    def _backward(self, losses: dict[str, torch.Tensor], factor: float, last: bool) -> None:
        """Add the gradients of the loss times ``factor``, and free the graph: empty ``losses``."""
        self._engine.backward(losses["loss"] * factor, last=last)
        losses.clear()

    def _watched(self, step: int) -> contextlib.AbstractContextManager[None]:
        """Return a block in which memory that runs out is noted for the next start."""
        return out_of_memory.watched(self._home, self._run.spec, self._halvings, self._attempt, step)

    def _scale(self, batch: Batch) -> float:
        """Return the factor of the micro-batch's loss for :meth:`Engine.backward`: the step's loss is a mean."""
        if batch.micro_batch < 0:
            return 0.0
        return 1.0 if self._exact else self._context.world_size * self._schedule.per_rank / self._run.micro_batches

    def _repeat(self, step: int, micro_batches: Sequence[tuple[int, float, MicroBatch]]) -> None:
        """Compute the gradients of ``step`` and the update once more; hooks know its micro-batches already.

        Args:
            micro_batches: with the number of each, and the factor of its loss.
        """
        with self._hooks.statistics_kept():
            for place, (number, scale, micro) in enumerate(micro_batches):
                self._phases.at(step, place)
                self._seed_draws(step, number)
                pieces = in_pieces(micro, 2**self._halvings)
                for count, (share, piece) in enumerate(pieces):
                    last = place == len(micro_batches) - 1 and count == len(pieces) - 1
                    self._backward(self._forward(piece), scale * share, last)
                    self._engine.step()

    def _set_learning_rate(self, step: int) -> float:
        schedule = schedule_at(self._run.spec, step, self._run.total_steps)
        return set_rates(self._engine.param_groups, *schedule, self._run.steps_per_epoch)

    def _seed_draws(self, step: int, number: int) -> None:
        """Seed torch for one forward (CPE, DropPath) from seed, step and micro-batch, so that no RNG state is saved.

        Args:
            number: of the micro-batch.
        """
        place = self._run.micro_batches if number == PADDING else number % self._run.micro_batches
        key = np.random.SeedSequence([self._run.spec.train.seed, step, place])
        seed = int(key.generate_state(1, np.uint64)[0] >> 1)
        # torch.manual_seed also seeds all other kinds of devices, and keeps each call in a list where there is none.
        torch.default_generator.manual_seed(seed)
        if self._context.device.type == "cuda":
            torch.cuda.manual_seed(seed)


def _next(step: int, feed: Iterator[Arrival]) -> Arrival:
    try:
        return next(feed)
    except StopIteration:
        raise TrainingError(f"step {step}: the stream of samples ended too early", where="data") from None
