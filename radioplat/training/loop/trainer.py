"""One student of a run on one rank: its model, engine, hooks and checkpoints, and its optimizer steps."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from radioplat.common.ranks import Ranks
from radioplat.data.loading.run_data import RunData
from radioplat.data.order.micro_batch_schedule import MicroBatchSchedule
from radioplat.design.run import Run
from radioplat.design.tasks.registry import task_of
from radioplat.models.modifiers.sparsity import apply_sparsity_mask
from radioplat.objectives.pieces import differs_in_pieces
from radioplat.training.accounting.accounts import Accounts
from radioplat.training.accounting.attempt_clock import AttemptClock
from radioplat.training.accounting.cost_meter import CostMeter
from radioplat.training.checkpoints.persistence import Persistence
from radioplat.training.engine.registry import build_engine
from radioplat.training.feed.arrival import Arrival
from radioplat.training.feed.micro_batches import MicroBatches
from radioplat.training.feed.stage_rests import StageRests
from radioplat.training.guards.loss_spikes import RollBack
from radioplat.training.guards.pause import Pauses
from radioplat.training.hooks.step_record import StepRecord
from radioplat.training.loop.average_student import AverageStudent
from radioplat.training.loop.garbage import free_memory
from radioplat.training.loop.optimizer_step import OptimizerStep
from radioplat.training.loop.run_hooks import RunHooks
from radioplat.training.loop.weight_penalty import regularize
from radioplat.training.watch.phases import CHECKPOINT, COLLECTIVE, VALIDATION, Phases
from radioplat.training.watch.rank_context import RankContext


@dataclass(frozen=True)
class Common:
    """Parts of a worker that its students share, and that are kept at a roll-back.

    Attributes:
        home: folder of the run's attempts, logs and records of memory that ran out.
        data: the samples.
        clock, accounts, pauses: hooks.
        phases: set to the current activity, for the watchdog.
        halvings: how often each micro-batch is halved because memory ran out before, and a message with the reason.
        schedule: which rank has which micro-batch.
        rests: of teachers, in stages without them.
        held: seconds so far in which the stream has waited for other students.
    """

    home: Path
    data: RunData
    clock: AttemptClock
    accounts: Accounts
    pauses: Pauses
    phases: Phases
    halvings: tuple[int, str]
    schedule: MicroBatchSchedule
    rests: StageRests
    held: Callable[[], float] = float  # 0.0


class Trainer:
    """Train one student on one rank: run its steps, save checkpoints, validate, and detect roll-backs.

    Args:
        run: of the student.
        place: of the student in the run of all.
        meter: of the student's part of the teachers' cost; kept at a roll-back.

    Attributes:
        objective: the module that is trained.
        engine: the engine around it, set by :meth:`build_engine`.
    """

    def __init__(
        self,
        run: Run,
        place: int,
        context: RankContext,
        persistence: Persistence,
        meter: CostMeter,
        common: Common,
    ) -> None:
        self.run, self.context, self.spec = run, context, run.spec
        self.place, self.meter, self._common = place, meter, common
        self._task = task_of(run)
        self.objective = self._task.objective(run).to(context.device).train()
        self.persistence, self.state = persistence, persistence.state
        persistence.restore_weights(self.objective)
        student = self.objective.student
        if (sparsity := student.architecture.student.sparsity) is not None:
            apply_sparsity_mask(student.backbone, sparsity)
        self._average = AverageStudent(student) if self.objective.asks_average() else None
        self.objective.average = self._average
        minutes = self.spec.train.checkpoint_minutes
        common.pauses.checkpoint_s = None if minutes is None else 60 * minutes
        outer = (common.clock, meter, common.accounts, common.pauses)
        deals = common.schedule if place == 0 else None
        self.hooks = RunHooks(run, context, self.objective, common.data, self.state, deals, outer)
        self.reporter = self.hooks.reporter
        regularize(self.objective, self.spec.train)
        persistence.warn_through(self.reporter.warn)
        self._has_checkpoint = self.state.global_step > 0
        halvings, reason = common.halvings
        if halvings:
            apart = differs_in_pieces(self.objective)
            self.reporter.warn(reason + (f". Not the same: {'; '.join(apart)}" if apart else ""))

    def build_engine(self) -> None:
        """Build the engine, which may partition the weights, and restore optimizer and hooks.

        Weights may be changed directly only before this.
        """
        run, context, common = self.run, self.context, self._common
        self.engine = build_engine(self.objective, self.spec, common.schedule.per_rank)
        self.persistence.restore_optimizer(self.engine)
        ema = self.hooks.attach(self.engine)
        if self._average is not None:
            self._average.ema = ema
        self.persistence.restore_hooks(self.hooks)
        listeners = (common.phases, self.hooks.targets.see, self.hooks.non_finite.no_answer, self.place)
        order, device = common.data.order, context.device
        batches = MicroBatches(run, order, device, context.on_cluster, self.objective, *listeners)
        place = (batches, common.phases, common.halvings[0], self.state.attempt, common.schedule, common.held)
        self._step = OptimizerStep(run, common.home, context, self.objective, self.engine, self.hooks, *place)

    def close(self) -> None:
        """Finish pending writes of checkpoints, ledger, reporter and accounts, and close them."""
        self.persistence.close()
        if (unwritten := self.hooks.ledger.flush()) is not None:
            self.reporter.warn(f"the ledger lacks the last steps: {unwritten}")
        self.reporter.close()
        self._common.accounts.write()

    def step(self, step: int, feed: Iterator[Arrival]) -> Generator[None, None, StepRecord]:
        """Run one step, see :meth:`OptimizerStep.parts`; :meth:`finished` must follow."""
        return self._step.parts(step, feed)

    def finished(self, record: StepRecord) -> RollBack | None:
        """Count a step that has ended.

        Returns:
            A roll-back, if the caller must go on from the last checkpoint.
        """
        if (back := self._roll_back(record)) is not None:
            return back
        self.state.optimizer_steps += record.moved
        self._passed(record.step + 1)
        return None

    def save_if_due(self, due: bool, pauses: bool) -> None:
        """Save a checkpoint after a step if the spec wants one; every rank must call it.

        Args:
            due: save one in any case.
            pauses: the workers stop after it; it is not validated.
        """
        steps = self.state.global_step
        validates = self._validation_due(steps)
        if validates or due or self.persistence.due(steps):
            self._common.clock.check_lease()
            self.save(validates and not pauses)

    def go_on_at(self, back: RollBack) -> None:
        """Skip the steps that were rolled back, and save at once, so that a later start skips them too."""
        self._common.phases.at(back.step)
        first = self.state.global_step
        self.hooks.ledger.taken_back(back.trail, first)
        self._common.accounts.undone()
        self.reporter.warn(
            f"step {back.step}: the loss jumped to {back.loss:.4g}; steps {first + 1} to {back.step} are taken back "
            f"and left out (roll-back {back.count} of {self.spec.train.spike.max_rollbacks})"
        )
        self.hooks.spikes.count = back.count
        for name in back.quarantined:  # queued micro-batches have no answers of these teachers
            self.objective.quarantine(name)
        self._passed(back.step)
        self.save()

    def _passed(self, steps: int) -> None:
        """Set the state to ``steps`` completed steps."""
        self.state.global_step = steps
        self.state.samples_consumed = steps * self.spec.global_batch_size
        self.state.epoch = steps // self.run.steps_per_epoch

    def save(self, validates: bool = False) -> None:
        """Save a checkpoint, and validate it if ``validates``; every rank must call it.

        The checkpoint is committed later (see :meth:`Persistence.finish`), except if it is validated or the spec rolls
        back loss spikes: then this waits until it is committed.
        """
        begin, steps, spikes = time.perf_counter(), self.state.global_step, self.hooks.spikes
        self._common.pauses.saved()
        with self._common.phases(CHECKPOINT):
            unwritten = self.hooks.ledger.flush()
            on_commit = partial(self.reporter.checkpoint, step=steps, costs=copy.deepcopy(self.meter.costs))
            path = self.persistence.save(self.hooks, on_commit, unwritten)
            # A roll-back leaves out the steps since the last committed checkpoint, so it must be known.
            committed = (validates or spikes.rolls_back) and self.persistence.finish() == path
        if committed:
            spikes.saved(steps)
            self._has_checkpoint = True
        self._common.accounts.spent("checkpoint", time.perf_counter() - begin)
        if validates and committed:
            self._validate(path, steps)

    def _validation_due(self, steps: int) -> bool:
        """Return whether a validation follows ``steps`` steps."""
        every = self.spec.train.validation_interval * self.run.steps_per_epoch
        return self._task.validates(self.run) and (steps % every == 0 or steps == self.run.total_steps)

    def _validate(self, checkpoint: Path, step: int) -> None:
        """Measure ``checkpoint`` on all ranks together; the copy of the model is freed afterwards."""
        begin, context, phases = time.perf_counter(), self.context, self._common.phases
        ranks = Ranks(context.rank, context.world_size, context.device, partial(phases, COLLECTIVE))
        with phases(VALIDATION):
            free_memory(context.device)
            result = self._task.validate(self.run, checkpoint, ranks)
            free_memory(context.device)
            if context.rank == 0:
                self.reporter.validation(result.kpi, step, result.notes)
                self.persistence.scored(checkpoint, result.kpi)
        seconds = time.perf_counter() - begin
        self._common.accounts.spent("validation", seconds)
        self._step.leave_out(seconds)

    def _roll_back(self, record: StepRecord) -> RollBack | None:
        """Return the roll-back if the loss of a step that moved the weights jumped, else None; equal on all ranks."""
        loss, spikes = record.values.get("loss"), self.hooks.spikes
        if loss is None or not record.moved or not spikes.must_roll_back(loss):
            return None
        if not self._has_checkpoint:
            self.reporter.warn(f"step {record.step + 1}: the loss jumped to {loss:.4g}; no checkpoint to go back to")
            return None
        return spikes.roll_back(record, self.objective.quarantined)
