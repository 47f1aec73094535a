"""Train on one rank, from a checkpoint to the end of the run."""

from __future__ import annotations

import copy
import time
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
from radioplat.training.feed.micro_batches import MicroBatches
from radioplat.training.feed.prefetch import Prefetch
from radioplat.training.guards.loss_spikes import RollBack
from radioplat.training.guards.pause import Pauses
from radioplat.training.hooks.step_record import StepRecord
from radioplat.training.loop.average_student import AverageStudent
from radioplat.training.loop.garbage import collect_at, collected_at_steps, free_memory
from radioplat.training.loop.optimizer_step import OptimizerStep
from radioplat.training.loop.run_hooks import RunHooks
from radioplat.training.loop.weight_penalty import regularize
from radioplat.training.watch.phases import CHECKPOINT, COLLECTIVE, VALIDATION, Phases
from radioplat.training.watch.rank_context import RankContext


class Trainer:
    """Train the student on one rank: run steps, save checkpoints, validate, and detect roll-backs.

    Args:
        clock, meter, accounts, pauses: hooks that are kept at a roll-back.
        phases: set to the current activity, for the watchdog.
        halvings: how often each micro-batch is halved because memory ran out before, and a message with the reason.
        schedule: which rank has which micro-batch.

    Attributes:
        objective: the module that is trained.
        engine: the engine around it, set by :meth:`build_engine`.
    """

    def __init__(
        self,
        run: Run,
        context: RankContext,
        persistence: Persistence,
        clock: AttemptClock,
        meter: CostMeter,
        accounts: Accounts,
        pauses: Pauses,
        phases: Phases,
        halvings: tuple[int, str],
        schedule: MicroBatchSchedule,
    ) -> None:
        self.run, self.context, self.spec, self._schedule = run, context, run.spec, schedule
        self._task = task_of(run)
        self.objective = self._task.objective(run).to(context.device).train()
        self.persistence, self.state = persistence, persistence.state
        persistence.restore_weights(self.objective)
        student = self.objective.student
        if (sparsity := student.architecture.student.sparsity) is not None:
            apply_sparsity_mask(student.backbone, sparsity)
        self._average = AverageStudent(student) if self.objective.asks_average() else None
        self.objective.average = self._average
        self._clock, self._meter, self._accounts, self._pauses, self._phases = clock, meter, accounts, pauses, phases
        minutes = self.spec.train.checkpoint_minutes
        pauses.checkpoint_s = None if minutes is None else 60 * minutes
        self._data = RunData.load(run.data_dir, self.spec.dataset.train_dataset)
        outer = (clock, meter, accounts, pauses)
        self.hooks = RunHooks(run, context, self.objective, self._data, self.state, schedule, outer)
        self.reporter = self.hooks.reporter
        regularize(self.objective, self.spec.train)
        persistence.warn_through(self.reporter.warn)
        self._has_checkpoint = self.state.global_step > 0
        self._halvings = halvings[0]
        if self._halvings:
            apart = differs_in_pieces(self.objective)
            self.reporter.warn(halvings[1] + (f". Not the same: {'; '.join(apart)}" if apart else ""))

    def build_engine(self) -> None:
        """Build the engine, which may partition the weights, and restore optimizer and hooks.

        Weights may be changed directly only before this.
        """
        run, context = self.run, self.context
        self.engine = build_engine(self.objective, self.spec, self._schedule.per_rank)
        self.persistence.restore_optimizer(self.engine)
        ema = self.hooks.attach(self.engine)
        if self._average is not None:
            self._average.ema = ema
        self.persistence.restore_hooks(self.hooks)
        listeners = (self._phases, self.hooks.targets.see, self.hooks.non_finite.no_answer)
        batches = MicroBatches(run, self._data.order, context.device, context.on_cluster, self.objective, *listeners)
        place = (batches, self._phases, self._halvings, self.state.attempt, self._schedule)
        self._step = OptimizerStep(run, context, self.objective, self.engine, self.hooks, *place)

    def close(self) -> None:
        """Finish pending writes of checkpoints, ledger, reporter and accounts, and close them."""
        self.persistence.close()
        if (unwritten := self.hooks.ledger.flush()) is not None:
            self.reporter.warn(f"the ledger lacks the last steps: {unwritten}")
        self.reporter.close()
        self._accounts.write()

    def train(self, feed: Prefetch) -> RollBack | None:
        """Run the remaining steps and save due checkpoints; on a pause request, save and stop.

        Returns:
            A roll-back, if the caller must resume from the last checkpoint; None at the end of the run.
        """
        self._clock.ready()
        with collected_at_steps():
            return self._steps(feed)

    def _steps(self, feed: Prefetch) -> RollBack | None:
        """See :meth:`train`."""
        for step in range(self.state.global_step, self.run.total_steps):
            self._phases.at(step)
            feed.leave_out(self.objective.quarantined)
            record = self._step(step, feed)
            if (back := self._roll_back(record)) is not None:
                return back
            collect_at(step)
            self.state.optimizer_steps += record.moved
            self._passed(step + 1)
            validates = self._validation_due(step + 1)
            pause = self._pauses.requested(record)
            if validates or pause or self.persistence.due(step + 1) or self._pauses.must_save(record):
                self._clock.check_lease()
                self.save(validates and not pause)
            if pause and step + 1 < self.run.total_steps:
                self.persistence.finish()
                raise pause
        self.persistence.finish()
        return None

    def go_on_at(self, back: RollBack) -> None:
        """Skip the steps that were rolled back, and save at once, so that a later start skips them too."""
        self._phases.at(back.step)
        first = self.state.global_step
        self.hooks.ledger.taken_back(back.trail, first)
        self._accounts.undone()
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
        self._pauses.saved()
        with self._phases(CHECKPOINT):
            unwritten = self.hooks.ledger.flush()
            on_commit = partial(self.reporter.checkpoint, step=steps, costs=copy.deepcopy(self._meter.costs))
            path = self.persistence.save(self.hooks, on_commit, unwritten)
            # A roll-back leaves out the steps since the last committed checkpoint, so it must be known.
            committed = (validates or spikes.rolls_back) and self.persistence.finish() == path
        if committed:
            spikes.saved(steps)
            self._has_checkpoint = True
        self._accounts.spent("checkpoint", time.perf_counter() - begin)
        if validates and committed:
            self._validate(path, steps)

    def _validation_due(self, steps: int) -> bool:
        """Return whether a validation follows ``steps`` steps."""
        every = self.spec.train.validation_interval * self.run.steps_per_epoch
        return self._task.validates(self.run) and (steps % every == 0 or steps == self.run.total_steps)

    def _validate(self, checkpoint: Path, step: int) -> None:
        """Measure ``checkpoint`` on all ranks together; the copy of the model is freed afterwards."""
        begin, context = time.perf_counter(), self.context
        ranks = Ranks(context.rank, context.world_size, context.device, partial(self._phases, COLLECTIVE))
        with self._phases(VALIDATION):
            free_memory(context.device)
            result = self._task.validate(self.run, checkpoint, ranks)
            free_memory(context.device)
            if context.rank == 0:
                self.reporter.validation(result.kpi, step, result.notes)
                self.persistence.scored(checkpoint, result.kpi)
        seconds = time.perf_counter() - begin
        self._accounts.spent("validation", seconds)
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
