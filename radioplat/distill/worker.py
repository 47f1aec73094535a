"""The loop of one training worker, the same in local mode and under Ray Train."""

from __future__ import annotations

import contextlib
import copy
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from radioplat.data.batch import Batch
from radioplat.data.ledger import Ledger
from radioplat.data.run_data import RunData
from radioplat.distill import ds_compat, group, memory
from radioplat.distill.accounts import Accounts
from radioplat.distill.attempt_clock import AttemptClock
from radioplat.distill.average import AverageStudent
from radioplat.distill.bad_samples import BadSamples
from radioplat.distill.cost_meter import CostMeter
from radioplat.distill.ema import Ema
from radioplat.distill.engine import arithmetic, build_engine
from radioplat.distill.feeder import Feeder, prefetch_depth
from radioplat.distill.lookout import lookout
from radioplat.distill.loss_state import LossState
from radioplat.distill.module import ClassifyModule, DistillModule, MicroBatch
from radioplat.distill.non_finite import NonFiniteGuard
from radioplat.distill.optimizer import set_rates
from radioplat.distill.overlap import overlap_of
from radioplat.distill.pause import Pauses
from radioplat.distill.persist import Persistence, trainable
from radioplat.distill.phases import CHECKPOINT, COLLECTIVE, DATA, INLINE, TEACHER, VALIDATION, Phases
from radioplat.distill.pieces import differs_in_pieces, in_pieces
from radioplat.distill.prepare import Run, build_peers, build_student
from radioplat.distill.regularizer import regularize
from radioplat.distill.reporter import Reporter, StepRecord
from radioplat.distill.running_norm import RunningNorm
from radioplat.distill.running_state import RunningState
from radioplat.distill.spikes import RollBack, SpikeGuard
from radioplat.distill.stages import schedule_at
from radioplat.distill.target_pass import TargetPass
from radioplat.distill.validation import validate, validation_due
from radioplat.errors import TeacherSilent, TrainingError
from radioplat.models import spectral
from radioplat.models.features import Features
from radioplat.spec.cluster import Placement
from radioplat.spec.resolve import ResolvedTeacher
from radioplat.teachers.client import Pending, TeacherClient
from radioplat.teachers.transport import Packed, unpack


@dataclass(frozen=True)
class Seat:
    """Where a worker sits; ``on_cluster``: in a process of Ray's, which is its own."""

    rank: int
    world_size: int
    device: torch.device
    on_cluster: bool = False


OpenBatches = Callable[[int, int], Iterator[Batch]]  # first step, stop -> this rank's micro-batches of those steps


def run_worker(
    run: Run,
    seat: Seat,
    clients: dict[str, TeacherClient],
    open_batches: OpenBatches,
    pauses: Pauses | None = None,
    when_stepped: Callable[[], None] = lambda: None,
) -> None:
    """Train from the newest checkpoint (or from nothing) to the last step.

    The process group must be up.

    Args:
        pauses: asked after each step whether to save and leave; default: never.
        when_stepped: called after the first step.

    Raises:
        TrainingError: the data did not follow the order, non-finite losses or spikes ended the run, or another run
            took over.
        OutOfMemory: on this rank alone; the next start takes smaller pieces.
        Paused: the workers were asked to leave, and have saved.
    """
    clock = AttemptClock(run, seat.rank, when_stepped)
    persistence = Persistence(run, seat.rank, seat.world_size)
    with lookout(run, persistence.state.attempt, seat.rank, seat.world_size, seat.on_cluster) as phases:
        _run_worker(run, seat, clients, open_batches, persistence, phases, pauses or Pauses(), clock)


def _run_worker(
    run: Run,
    seat: Seat,
    clients: dict[str, TeacherClient],
    open_batches: OpenBatches,
    persistence: Persistence,
    phases: Phases,
    pauses: Pauses,
    clock: AttemptClock,
) -> None:
    attempt = persistence.state.attempt
    halvings = group.agree(memory.halvings(run.folder, run.spec, attempt) if seat.rank == 0 else None)
    meter = CostMeter(clients, run.spec.cluster, persistence.state.teacher_cost)
    clock.begin(persistence.state)
    start, stop = persistence.state.global_step, run.total_steps
    targets = TargetPass(run, seat.world_size, seat.device, start, meter)
    accounts = Accounts(run, seat.rank, seat.world_size, attempt, start, seat.on_cluster)

    def feed(stop: int) -> contextlib.closing[Feeder]:
        """This rank's batches up to step ``stop``, asked of the teachers ahead."""
        batches, depth = open_batches(start, stop), prefetch_depth(run.spec)
        return contextlib.closing(Feeder(batches, clients, run.asked, depth, run.partitions))

    with contextlib.ExitStack() as stack:
        # The stream takes seconds to start: it does so while the student is built.
        feeder = stack.enter_context(feed(targets.first_stop))
        books = (meter, accounts, phases, halvings)
        worker: _Worker | None = _Worker(run, seat, persistence, *books)
        stack.callback(lambda: worker and worker.close())
        feeder.without = worker.module.quarantined
        fed = targets.measure(worker.module.student, iter(feeder))
        worker.build_engine()
        if targets.first_stop < stop:
            feeder = stack.enter_context(feed(stop))
            feeder.without = worker.module.quarantined
            fed = iter(feeder)
        while (back := worker.train(fed, pauses, clock)) is not None:
            worker.close()
            worker = None  # its memory is needed for the next
            persistence = Persistence(run, seat.rank, seat.world_size)
            persistence.state.attempt = attempt
            worker = _Worker(run, seat, persistence, *books)
            worker.build_engine()
            feeder.without = worker.module.quarantined
            worker.go_on_at(back)


class _Worker:
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
        self.grains = run.grains(seat.world_size)
        self.partitions = run.partitions
        data = RunData.load(run.data_dir, self.spec.dataset.train_dataset)
        self.order, self.bad = data.order, BadSamples(data.index, self.spec.dataset.max_bad_fraction, seat.device)
        torch.backends.cudnn.benchmark = self.spec.train.cudnn.benchmark
        torch.backends.cudnn.deterministic = self.spec.train.cudnn.deterministic
        student = build_student(run)
        view = run.student_view
        distils = run.task == "distill"
        config = self.spec.distill
        peers = build_peers(run)
        self.module = (
            DistillModule(student, run.teachers, view, config, peers) if distils else ClassifyModule(student, view)
        )
        self.module.to(seat.device).train()
        self.persistence, self.state = persistence, persistence.state
        self.loss_state = LossState(self.module)
        persistence.restore_weights(self.module, self.loss_state)
        if distils and self.module.asks_average():
            self.module.average = AverageStudent(student)
        self.running = RunningState(self.module)
        regularize(self.module, self.spec.train)
        config, start = self.spec.distill.target_norm, self.state.global_step
        saved = persistence.target_norm
        self.targets = RunningNorm(student, run.teachers, config, seat.device, saved, start)
        self.module.quarantined = set(self.state.quarantined)
        self.guard = NonFiniteGuard(self.spec.train, self.module, seat.rank)
        self.ledger = Ledger(run.folder / "ledger", seat.rank, self.state.attempt)
        self.reporter, self.meter = Reporter(run, seat.rank), meter
        persistence.warn_through(self.reporter.warn)
        self.accounts, self.phases = accounts, phases
        self.spikes = SpikeGuard(self.spec.train.spike, self.state.recent_losses, self.state.rollbacks)
        self._has_checkpoint = self.state.global_step > 0
        self._moved = False  # whether the last step moved the weights
        self._halvings = halvings[0]
        if self._halvings:
            apart = differs_in_pieces(self.module)
            self.reporter.warn(halvings[1] + (f". Not the same: {'; '.join(apart)}" if apart else ""))

    def build_engine(self) -> None:
        """Cut the weights up as ZeRO does; until then they may be changed."""
        self.engine = build_engine(self.module, self.spec, self.grains.per_rank)
        self.persistence.restore_optimizer(self.engine, self.module)
        self.running.sync()
        self.ema: Ema | None = None
        if self.spec.train.enable_ema:
            self.ema = Ema(self.engine, trainable(self.module), self._statistics(), self.spec.train.ema_decay)
            self.persistence.restore_average(self.ema)

    def close(self) -> None:
        """Write what is in flight, and what the ledger, the reporter and the accounts hold back."""
        self.persistence.close()
        if (unwritten := self._write_ledger()) is not None:
            self.reporter.warn(f"the ledger lacks the last steps: {unwritten}")
        self.reporter.close()
        self.accounts.write()

    def train(
        self, feed: Iterator[tuple[Batch, dict[str, Pending]]], pauses: Pauses, clock: AttemptClock
    ) -> RollBack | None:
        """Take every step that is left, and write the checkpoints that fall due; leave where asked to, with one.

        Returns:
            Where to go on from the last checkpoint; None at the end of the run.
        """
        clock.ready()
        for step in range(self.state.global_step, self.run.total_steps):
            self.phases.at(step)
            self.accounts.begin_step()
            pauses.begin_step()
            record = self._step(step, feed)
            clock.stepped()
            self.meter.charge(record)
            self.accounts.step(record, moved=self._moved)
            self.reporter.step(record, self.meter.bill, self.accounts.kpi(self.meter.bill))
            if (back := self._roll_back(record)) is not None:
                return back
            self._passed(step + 1)
            validates = validation_due(self.run, step + 1)
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

    def _validate(self, checkpoint: Path, step: int) -> None:
        begin = time.perf_counter()
        with self.phases(VALIDATION):
            if self.seat.rank == 0:
                kpi = validate(self.run, checkpoint)
                self.reporter.validation(kpi, step)
                self.persistence.scored(checkpoint, kpi)
            with self.phases(COLLECTIVE):
                group.barrier()
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
        with group.deciding():
            count = self.spikes.rolled(record.step, loss)
        return RollBack(record.step + 1, count, loss, self.spikes.trail)

    def _agreed(self, mine: bool) -> bool:
        """Whether any rank says so."""
        return bool(group.largest(torch.tensor([float(mine)], device=self.seat.device)).item())

    def _step(self, step: int, feed: Iterator[tuple[Batch, dict[str, Pending]]]) -> StepRecord:
        begin = time.perf_counter()
        record = StepRecord(step, self._set_learning_rate(step))
        scale = self.seat.world_size * self.grains.per_rank / self.run.micro_batches
        expected = self.grains.of_rank(step, self.seat.rank)
        self.guard.begin_step()
        self._look_at_average(step)
        self.spikes.tripped = self._moved = False
        used: list[tuple[np.ndarray, np.ndarray, str]] = []  # positions, ids, terms that were not finite
        for place, grain in enumerate(expected):
            self.phases.at(step, place)
            waited = time.perf_counter()
            with self.phases(DATA):
                batch, answers = self._next(step, feed)
            record.wait_data += time.perf_counter() - waited
            self._check(batch, grain, step)
            micro = self._micro_batch(batch, answers, record)
            record.wait += time.perf_counter() - waited
            # Where the step is lost already, its micro-batches are still taken from the stream.
            if not self._lost:
                self._seed_draws(step, place * self.seat.world_size + self.seat.rank)
                self._learn(step, batch, micro, record, scale, last=place == len(expected) - 1)
            terms = self._not_finite()
            if batch.grain >= 0:
                self.ledger.record(step, batch)
                self.bad.see(batch)
                self.spikes.consumed(step, batch.position, batch.sample_id)
                used.append((batch.position, batch.sample_id, terms))
        for positions, ids, terms in used if self._lost else ():
            reason = f"non_finite: {terms}" if terms else "loss_spike" if self.spikes.tripped else "skipped_step"
            self.ledger.rejected(step, self.seat.rank, positions, ids, [reason] * len(ids))
        with group.deciding():
            self._end_step(step)
        record.seconds = time.perf_counter() - begin
        with self.phases(COLLECTIVE):
            record.reduce(self.run.micro_batches, self.seat.device, self._lost)
            with group.deciding():
                self.bad.judge(step)
        if self.spikes.tripped:
            record.skipped_for = "its loss jumped"
        elif not self._moved and not self._lost:
            self.reporter.warn(f"step {step + 1} moved no weight: its gradients were not finite")
        return record

    def _look_at_average(self, step: int) -> None:
        """Show the module the student's average as the previous step left it, where it teaches at ``step``."""
        module = self.module
        if isinstance(module, DistillModule) and module.average is not None:
            module.step = step
            if module.asks_average(step):
                module.average.follow(self.ema, module.student)

    @property
    def _lost(self) -> bool:
        """Whether the weights do not move in this step."""
        return self.guard.tripped or self.spikes.tripped

    def _learn(self, step: int, batch: Batch, micro: MicroBatch, record: StepRecord, scale: float, last: bool) -> None:
        real = batch.grain >= 0
        self.running.micro_batch(real)
        self.loss_state.micro_batch(real)
        with memory.watched(self.run.folder, self.spec, self._halvings, self.state.attempt, step):
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
            return self._agreed(self.spikes.is_spike(group.total(mine).item() / self.run.micro_batches))

    def _next(self, step: int, feed: Iterator[tuple[Batch, dict[str, Pending]]]) -> tuple[Batch, dict[str, Pending]]:
        try:
            return next(feed)
        except StopIteration:
            raise TrainingError(f"step {step}: the stream of samples ended too early", where="data") from None

    def _not_finite(self) -> str:
        """The terms of the micro-batch just seen that were not finite on this rank; mostly none."""
        terms = [term for _, term, _ in self.guard.events]
        self.guard.events.clear()
        return ", ".join(terms)

    def _end_step(self, step: int) -> None:
        if self._lost:
            ds_compat.discard_gradients(self.engine)
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

    def _check(self, batch: Batch, grain: int, step: int) -> None:
        size = self.spec.dataset.batch_size
        if batch.grain != grain:
            message = f"step {step}: micro-batch {batch.grain} arrived where the order has {grain}"
            raise TrainingError(message, where="data")
        if grain < 0:
            return
        expected = self.order.slice(grain * size, (grain + 1) * size).sample_id
        if not np.array_equal(batch.sample_id, expected):
            first = int(np.flatnonzero(batch.sample_id != expected)[0])
            raise TrainingError(
                f"step {step}: sample {batch.sample_id[first]} arrived at position {grain * size + first}, "
                f"where the order has {expected[first]}",
                where="data",
            )

    def _micro_batch(self, batch: Batch, answers: dict[str, Pending], record: StepRecord) -> MicroBatch:
        device = self.seat.device
        # What teachers elsewhere see went to them.
        view = batch.views[self.run.student_view]
        micro = MicroBatch(
            {name: torch.tensor(batch.views[name].shown).to(device) for name in self.run.inner_views},
            torch.tensor(batch.weight).to(device),
            torch.tensor(batch.label).to(device),
            factors=self.partitions.factors(batch.grain) if batch.grain >= 0 else {},
        )
        self._overlap_inside(batch, micro)
        for teacher in self.run.asked:
            if batch.grain < 0 or micro.factors.get(teacher.name) == 0:
                micro.targets[teacher.name] = self._no_features(teacher.name, len(batch))
                continue
            if teacher.name in self.module.quarantined:
                continue
            try:
                packed = self._answer(teacher, answers[teacher.name], record)
            except TeacherSilent as error:
                # As if it had said NaN: all ranks then take the decision that the spec names.
                self.guard.reasons.append(str(error))
                micro.targets[teacher.name] = self._no_features(teacher.name, len(batch)).map(lambda t: t * math.nan)
                continue
            record.answered(teacher.name, packed)
            micro.targets[teacher.name] = unpack(packed).map(lambda t: t.to(device))
            maps = "spatial" in teacher.wanted or teacher.bindings
            overlap = overlap_of(view, batch.views[teacher.view]) if maps else None
            if overlap is not None:
                micro.overlaps[teacher.name] = overlap.to(device)
            self.targets.see(teacher.name, micro.targets[teacher.name], micro.weight, batch.views.get(teacher.view))
        return micro

    def _overlap_inside(self, batch: Batch, micro: MicroBatch) -> None:
        """How the views of teachers inside the module lie to the student's."""
        for name in self.run.inner_views if batch.grain >= 0 else ():
            overlap = overlap_of(batch.views[self.run.student_view], batch.views[name])
            if overlap is not None:
                micro.inner_overlaps[name] = overlap.to(self.seat.device)

    def _answer(self, teacher: ResolvedTeacher, pending: Pending, record: StepRecord) -> Packed:
        """What a teacher says. One in this process is work of its own; for another it waits."""
        here = not self.seat.on_cluster or teacher.service.placement is Placement.inline
        begin = time.perf_counter()
        try:
            with self.phases(INLINE if here else TEACHER):
                return pending()
        finally:
            record.wait_teachers += time.perf_counter() - begin

    def _no_features(self, name: str, size: int) -> Features:
        """Zeros in the shapes of a teacher's answer, for padding and for what other teachers see."""
        info, grid, device = self.run.infos[name], self.run.grids[name], self.seat.device
        return Features(
            torch.zeros(size, info.summary_dim, device=device),
            torch.zeros(size, *grid, info.spatial_dim, device=device),
            {
                "logits": torch.zeros(size, max(1, info.logits_dim), device=device),
                **{key: torch.zeros(size, *shape, device=device) for key, shape in info.named.items()},
            },
        )
