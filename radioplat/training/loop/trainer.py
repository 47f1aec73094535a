"""The steps of one rank, from a checkpoint to the end of the run."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np
import torch

from radioplat.common import collectives
from radioplat.data.batch import Batch
from radioplat.data.ledger.ledger import Ledger
from radioplat.data.loading.run_data import RunData
from radioplat.design.run import Run
from radioplat.design.stages import schedule_at
from radioplat.design.tasks.registry import task_of
from radioplat.errors import TrainingError
from radioplat.models.modifiers import spectral
from radioplat.models.modifiers.sparsity import apply_sparsity_mask
from radioplat.objectives.loss_state import LossState
from radioplat.objectives.micro_batch import MicroBatch
from radioplat.objectives.objective import StepContext
from radioplat.objectives.pieces import differs_in_pieces, in_pieces
from radioplat.optim.optimizer import set_rates
from radioplat.training.accounting.accounts import Accounts
from radioplat.training.accounting.attempt_clock import AttemptClock
from radioplat.training.accounting.cost_meter import CostMeter
from radioplat.training.accounting.reporter import Reporter
from radioplat.training.accounting.step_record import StepRecord
from radioplat.training.checkpoints.persistence import Persistence, trainable
from radioplat.training.engine import deepspeed_compat
from radioplat.training.engine.batchnorm_state import RunningState
from radioplat.training.engine.deepspeed_engine import arithmetic, build_engine
from radioplat.training.engine.ema import Ema
from radioplat.training.feed.feeder import Fed, Feeder
from radioplat.training.feed.micro_batches import MicroBatches
from radioplat.training.guards import out_of_memory
from radioplat.training.guards.bad_samples import BadSamples
from radioplat.training.guards.loss_spikes import RollBack, SpikeGuard
from radioplat.training.guards.non_finite import NonFiniteGuard
from radioplat.training.guards.pause import Pauses
from radioplat.training.loop.average_student import AverageStudent
from radioplat.training.loop.rank import Seat
from radioplat.training.loop.weight_penalty import regularize
from radioplat.training.targets.running import RunningNorm
from radioplat.training.watch.phases import CHECKPOINT, COLLECTIVE, DATA, VALIDATION, Phases


class Trainer:
    """The student under training on one rank: takes steps, saves, validates, and rolls back.

    Args:
        accounts: gets the time of each step.
        phases: told what is being done.
        halvings: how often each micro-batch is halved for want of memory, and the line that says why.
    """

    def __init__(
        self,
        run: Run,
        seat: Seat,
        persistence: Persistence,
        meter: CostMeter,
        accounts: Accounts,
        phases: Phases,
        halvings: tuple[int, str],
    ) -> None:
        self.run, self.seat, self.spec = run, seat, run.spec
        self.schedule = run.micro_batch_schedule(seat.world_size)
        data = RunData.load(run.data_dir, self.spec.dataset.train_dataset)
        self.bad = BadSamples(data.index, self.spec.dataset.max_bad_fraction, seat.device)
        torch.backends.cudnn.benchmark = self.spec.train.cudnn.benchmark
        torch.backends.cudnn.deterministic = self.spec.train.cudnn.deterministic
        self.task = task_of(run)
        self.module = self.task.objective(run)
        self.module.to(seat.device).train()
        self.persistence, self.state = persistence, persistence.state
        self.loss_state = LossState(self.module)
        persistence.restore_weights(self.module, self.loss_state)
        student = self.module.student
        if (sparsity := student.architecture.student.sparsity) is not None:
            apply_sparsity_mask(student.backbone, sparsity)
        self._average: AverageStudent | None = None
        if self.module.asks_average():
            self._average = self.module.average = AverageStudent(student)
        self.running = RunningState(self.module)
        regularize(self.module, self.spec.train)
        start = self.state.global_step
        saved = persistence.target_norm
        norm = self.spec.distill.target_norm
        self.targets = RunningNorm(student, run.teachers, norm, seat.device, saved, start)
        for name in self.state.quarantined:
            self.module.quarantine(name)
        self.guard = NonFiniteGuard(self.spec.train, self.module)
        self.ledger = Ledger(run.folder / "ledger", seat.rank, self.state.attempt)
        self.reporter, self.meter = Reporter(run, seat.rank, start), meter
        persistence.warn_through(self.reporter.warn)
        self.accounts, self.phases = accounts, phases
        listeners = (phases, self.targets.see, self.guard.reasons.append)
        self.batches = MicroBatches(run, data.order, seat.device, seat.on_cluster, self.module, *listeners)
        self.spikes = SpikeGuard(self.spec.train.spike, self.state.recent_losses, self.state.rollbacks)
        self._has_checkpoint = self.state.global_step > 0
        self._moved = False  # whether the last step moved the weights
        self._empty = False  # whether no sample of it has weight
        self._empty_in_a_row = 0
        self._halvings = halvings[0]
        if self._halvings:
            apart = differs_in_pieces(self.module)
            self.reporter.warn(halvings[1] + (f". Not the same: {'; '.join(apart)}" if apart else ""))

    def build_engine(self) -> None:
        """Cut the weights up as ZeRO does; until then they may be changed."""
        self.engine = build_engine(self.module, self.spec, self.schedule.per_rank)
        self.persistence.restore_optimizer(self.engine, self.module)
        self.running.sync()
        self.ema: Ema | None = None
        if self.spec.train.enable_ema:
            self.ema = Ema(self.engine, trainable(self.module), self._statistics(), self.spec.train.ema_decay)
            self.persistence.restore_average(self.ema)
            if self._average is not None:
                self._average.ema = self.ema

    def close(self) -> None:
        """Write what is in flight, and what the ledger, the reporter and the accounts hold back."""
        self.persistence.close()
        if (unwritten := self._write_ledger()) is not None:
            self.reporter.warn(f"the ledger lacks the last steps: {unwritten}")
        self.reporter.close()
        self.accounts.write()

    def train(self, feeder: Feeder, pauses: Pauses, clock: AttemptClock) -> RollBack | None:
        """Run the remaining steps and save due checkpoints; on a pause request, save and stop.

        Returns:
            Where to go on from the last checkpoint; None at the end of the run.
        """
        clock.ready()
        for step in range(self.state.global_step, self.run.total_steps):
            self.phases.at(step)
            self.accounts.begin_step()
            pauses.begin_step()
            feeder.leave_out(self.module.quarantined)
            record = self._step(step, feeder)
            clock.stepped()
            self.meter.charge(record)
            self.accounts.step(record, moved=self._moved)
            self.reporter.step(record, self.meter.bill, self.accounts.kpi(self.meter.bill))
            if (back := self._roll_back(record)) is not None:
                return back
            self._passed(step + 1)
            validates = self._validation_due(step + 1)
            pause = pauses.asked()
            if validates or pause or self.persistence.due(step + 1):
                clock.check_lease()
                self.save(step + 1, validates and not pause)
            if pause and step + 1 < self.run.total_steps:
                self.persistence.finish()
                raise pause
        self.persistence.finish()
        return None

    def go_on_at(self, back: RollBack) -> None:
        """Leave out the steps that were rolled back; a checkpoint says so at once, for a start that follows."""
        self.phases.at(back.step)
        first = self.state.global_step
        for step, positions, ids in back.trail:
            if step >= first:
                self.ledger.rejected(step, self.seat.rank, positions, ids, ["rolled_back"] * len(ids))
        self.accounts.undone()
        self.reporter.warn(
            f"step {back.step}: the loss jumped to {back.loss:.4g}; steps {first + 1} to {back.step} are taken back "
            f"and left out (roll-back {back.count} of {self.spec.train.spike.max_rollbacks})"
        )
        self.spikes.count = back.count
        for name in back.quarantined:  # micro-batches that are already queued have no answers of these
            self.module.quarantine(name)
        self._passed(back.step)
        self.save(back.step)

    def _passed(self, steps: int) -> None:
        """The run has come to ``steps`` steps."""
        self.state.global_step = steps
        self.state.samples_consumed = steps * self.spec.global_batch_size
        self.state.epoch = steps // self.run.steps_per_epoch
        self.state.quarantined = sorted(self.module.quarantined)
        self.state.teacher_cost = self.meter.counted()
        self.state.recent_losses, self.state.rollbacks = self.spikes.losses, self.spikes.count

    def save(self, steps: int, validates: bool = False) -> None:
        """Save after ``steps`` steps; the checkpoint is committed later, see :meth:`Persistence.finish`."""
        begin = time.perf_counter()
        with self.phases(CHECKPOINT):
            unwritten = self._write_ledger()
            exact, losses = self.running.exact(), self.loss_state.tensors()
            average = self.ema.whole() if self.ema else {}
            kept = (self.state, exact, losses, average, self.targets.state())
            bill = copy.deepcopy(self.meter.bill)

            def told(path: Path) -> None:
                """It is committed."""
                self.reporter.checkpoint(path, steps, bill)

            path = self.persistence.save(self.engine, self.module, *kept, told=told, unwritten=unwritten)
            # What a roll-back leaves out are the steps since the last one that is there.
            waits = validates or self.spikes.rolls_back
            committed = waits and self.persistence.finish() == path
        if committed:
            self.spikes.saved(steps)
            self._has_checkpoint = True
        self.accounts.spent("checkpoint", time.perf_counter() - begin)
        if validates and committed:
            self._validate(path, steps)

    def _write_ledger(self) -> OSError | None:
        """What keeps the ledger from being written, if anything does; its rows are then kept for the next time."""
        try:
            self.ledger.flush()
        except OSError as error:
            return error
        return None

    def _validation_due(self, steps: int) -> bool:
        """Return whether a validation follows ``steps`` steps."""
        every = self.spec.train.validation_interval * self.run.steps_per_epoch
        return self.task.validates(self.run) and (steps % every == 0 or steps == self.run.total_steps)

    def _validate(self, checkpoint: Path, step: int) -> None:
        begin = time.perf_counter()
        with self.phases(VALIDATION):
            if self.seat.rank == 0:
                found = self.task.validate(self.run, checkpoint)
                self.reporter.validation(found.kpi, step, found.notes)
                self.persistence.scored(checkpoint, found.kpi)
            with self.phases(COLLECTIVE):
                collectives.barrier()
        self.accounts.spent("validation", time.perf_counter() - begin)

    def _roll_back(self, record: StepRecord) -> RollBack | None:
        """Where the loss of a step that moved the weights jumped, what to go on with; the same on every rank."""
        loss = record.values.get("loss")
        if loss is None or not self._moved:
            return None
        if not self.spikes.rolls_back or not self._agreed(self.spikes.is_spike(loss)):
            self.spikes.counted(loss)
            return None
        if not self._has_checkpoint:
            self.reporter.warn(f"step {record.step + 1}: the loss jumped to {loss:.4g}; no checkpoint to go back to")
            return None
        with collectives.mark_agreed():
            count = self.spikes.rolled(record.step, loss)
        return RollBack(record.step + 1, count, loss, self.spikes.trail, frozenset(self.module.quarantined))

    def _agreed(self, mine: bool) -> bool:
        """Whether any rank says so."""
        return bool(collectives.maximum(torch.tensor([float(mine)], device=self.seat.device)).item())

    def _step(self, step: int, feed: Iterator[Fed]) -> StepRecord:
        begin = time.perf_counter()
        record = StepRecord(step, self._set_learning_rate(step))
        scale = self.seat.world_size * self.schedule.per_rank / self.run.micro_batches
        expected = self.schedule.of_rank(step, self.seat.rank)
        self.guard.begin_step()
        self.spikes.tripped = self._moved = self._empty = False
        feed = self._begin_objective(step, feed, len(expected))
        used: list[tuple[np.ndarray, np.ndarray, str]] = []  # positions, ids, terms that were not finite
        for place, micro_batch in enumerate(expected):
            self.phases.at(step, place)
            waited = time.perf_counter()
            with self.phases(DATA):
                batch, answers = _next(step, feed)
            record.wait_data += time.perf_counter() - waited
            micro = self.batches.micro_batch(step, micro_batch, batch, answers, record)
            record.wait += time.perf_counter() - waited
            # Where the step is lost already, its micro-batches are still taken from the stream.
            if not self._lost:
                self._seed_draws(step, place * self.seat.world_size + self.seat.rank)
                self._learn(step, batch, micro, record, scale, last=place == len(expected) - 1)
            terms = self._not_finite()
            if batch.micro_batch >= 0:
                self.ledger.record(step, batch)
                self.bad.see(batch)
                self.spikes.consumed(step, batch.position, batch.sample_id)
                used.append((batch.position, batch.sample_id, terms))
        for positions, ids, terms in used if self._lost else ():
            reason = f"non_finite: {terms}" if terms else "loss_spike" if self.spikes.tripped else "skipped_step"
            self.ledger.rejected(step, self.seat.rank, positions, ids, [reason] * len(ids))
        with collectives.mark_agreed():
            self._end_step(step)
        record.seconds = time.perf_counter() - begin
        with self.phases(COLLECTIVE):
            record.reduce(self.run.micro_batches, self.seat.device, self._lost)
            with collectives.mark_agreed():
                self.bad.judge(step)
        self._empty_in_a_row = self._empty_in_a_row + 1 if self._empty else 0
        if self._empty:
            in_a_row = f" ({self._empty_in_a_row} such steps in a row)" if self._empty_in_a_row > 1 else ""
            record.skipped_for = f"none of its samples has weight{in_a_row}"
        elif self.spikes.tripped:
            record.skipped_for = "its loss jumped"
        elif not self._moved and not self._lost:
            self.reporter.warn(f"step {step + 1} moved no weight: its gradients were not finite")
        return record

    def _begin_objective(self, step: int, feed: Iterator[Fed], count: int) -> Iterator[Fed]:
        """Call the objective's ``begin_step``, with the step's ``count`` micro-batches if it needs them.

        Returns:
            All of ``feed``, those micro-batches included.
        """
        arrived: list[Fed] = []
        if self.module.needs_whole_step:
            with self.phases(DATA):
                arrived = [_next(step, feed) for _ in range(count)]
        with self.phases(COLLECTIVE):
            self.module.begin_step(StepContext(step, [batch for batch, _ in arrived]))
        return chain(arrived, feed)

    @property
    def _lost(self) -> bool:
        """Whether the weights do not move in this step."""
        return self.guard.tripped or self.spikes.tripped or self._empty

    def _learn(self, step: int, batch: Batch, micro: MicroBatch, record: StepRecord, scale: float, last: bool) -> None:
        real = batch.micro_batch >= 0
        self.running.micro_batch(real)
        self.loss_state.micro_batch(real)
        with out_of_memory.watched(self.run.folder, self.spec, self._halvings, self.state.attempt, step):
            pieces = in_pieces(micro, 2**self._halvings)
            for number, (share, piece) in enumerate(pieces):
                with arithmetic(self.spec, self.seat.device):
                    losses = self.engine(piece)
                with self.phases(COLLECTIVE):
                    finite = self.guard.check(step, batch, losses)
                if not finite:
                    return
                if real:
                    record.add(losses, share)
                ends = last and number == len(pieces) - 1
                if ends and not self.guard.has_weight:
                    # Zero gradients move weights all the same: by weight decay, and by what the moments remember.
                    self._empty = True
                    return
                self.engine.set_gradient_accumulation_boundary(ends)
                self.engine.backward(losses["loss"] * (scale * share if real else 0.0))
                if ends and self.spikes.skips and self._jumps(record):
                    self.spikes.tripped = True
                    return
                self.engine.step()

    def _jumps(self, record: StepRecord) -> bool:
        """Whether the loss of the whole step, whose weights have not moved yet, is a spike; the same on every rank."""
        with self.phases(COLLECTIVE):
            mine = torch.tensor([record.values.get("loss", 0.0)], dtype=torch.float64, device=self.seat.device)
            return self._agreed(self.spikes.is_spike(collectives.total(mine).item() / self.run.micro_batches))

    def _not_finite(self) -> str:
        """The terms of the micro-batch just seen that were not finite on this rank; mostly none."""
        terms = [term for _, term, _ in self.guard.events]
        self.guard.events.clear()
        return ", ".join(terms)

    def _end_step(self, step: int) -> None:
        if self._lost:
            deepspeed_compat.discard_gradients(self.engine)
            if self.guard.tripped:
                self.guard.decide(step)
        else:
            spectral.follow(self.module)
        self.running.step(commit=not self._lost)
        self.loss_state.step(commit=not self._lost)
        self.targets.end_step(step, commit=not self._lost)
        # Finite losses may have had gradients that are not: where DeepSpeed sees that, it moves no weight. The samples
        # of such a step, an fp16 overflow's too, are consumed all the same.
        self._moved = not self._lost and self.engine.was_step_applied()
        if self._moved:
            self.guard.passed()
            self.state.optimizer_steps += 1
            if self.ema:
                self.ema.step(self._statistics())
        elif not self._lost:
            self.guard.overflowed(step)

    def _statistics(self) -> dict[str, torch.Tensor]:
        """BatchNorm statistics in fp32 by the student's names."""
        mine = {name: value for name, value in self.running.exact().items() if name.startswith("student.")}
        return {name.removeprefix("student."): value for name, value in mine.items()}

    def _set_learning_rate(self, step: int) -> float:
        schedule = schedule_at(self.spec, step, self.run.total_steps)
        return set_rates(self.engine.optimizer.param_groups, *schedule, self.run.steps_per_epoch)

    def _seed_draws(self, step: int, micro_batch: int) -> None:
        """Every draw of a forward (CPE, DropPath) follows from seed, step and micro-batch; nothing is carried."""
        key = np.random.SeedSequence([self.spec.train.seed, step, micro_batch])
        torch.manual_seed(int(key.generate_state(1, np.uint64)[0] >> 1))


def _next(step: int, feed: Iterator[Fed]) -> Fed:
    try:
        return next(feed)
    except StopIteration:
        raise TrainingError(f"step {step}: the stream of samples ended too early", where="data") from None
