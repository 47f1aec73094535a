"""The loop of one training worker, the same in local mode and under Ray Train."""

from __future__ import annotations

import contextlib
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
from radioplat.distill import ds_compat, group
from radioplat.distill.attempt_clock import AttemptClock
from radioplat.distill.bad_samples import BadSamples
from radioplat.distill.cost_meter import CostMeter
from radioplat.distill.ema import Ema
from radioplat.distill.engine import arithmetic, build_engine
from radioplat.distill.feeder import Feeder, prefetch_depth
from radioplat.distill.loss_state import LossState
from radioplat.distill.module import ClassifyModule, DistillModule, MicroBatch
from radioplat.distill.non_finite import NonFiniteGuard
from radioplat.distill.optimizer import set_rates
from radioplat.distill.overlap import overlap_of
from radioplat.distill.pause import Pauses
from radioplat.distill.persist import Persistence, trainable
from radioplat.distill.prepare import Run, build_student
from radioplat.distill.regularizer import regularize
from radioplat.distill.reporter import Reporter, StepRecord
from radioplat.distill.running_norm import RunningNorm
from radioplat.distill.running_state import RunningState
from radioplat.distill.stages import schedule_at
from radioplat.distill.target_pass import TargetPass
from radioplat.distill.validation import validate, validation_due
from radioplat.errors import TeacherSilent, TrainingError
from radioplat.models import spectral
from radioplat.models.features import Features
from radioplat.teachers.client import Pending, TeacherClient
from radioplat.teachers.transport import unpack


@dataclass(frozen=True)
class Seat:
    """Where a worker sits."""

    rank: int
    world_size: int
    device: torch.device


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
        TrainingError: the data did not follow the order, non-finite losses ended the run, or another run took over.
        Paused: the workers were asked to leave, and have saved.
    """
    clock = AttemptClock(run, seat.rank, when_stepped)
    persistence = Persistence(run, seat.rank, seat.world_size)
    meter = CostMeter(clients, run.spec.cluster, persistence.state.teacher_cost)
    clock.begin(persistence.state)
    start, stop = persistence.state.global_step, run.total_steps
    targets = TargetPass(run, seat.world_size, seat.device, start, meter)

    def feed(stop: int) -> contextlib.closing[Feeder]:
        """This rank's batches up to step ``stop``, asked of the teachers ahead."""
        batches, depth = open_batches(start, stop), prefetch_depth(run.spec)
        return contextlib.closing(Feeder(batches, clients, run.teachers, depth, run.partitions))

    with contextlib.ExitStack() as stack:
        # The stream takes seconds to start: it does so while the student is built.
        feeder = stack.enter_context(feed(targets.first_stop))
        worker = stack.enter_context(contextlib.closing(_Worker(run, seat, persistence, meter)))
        feeder.without = worker.module.quarantined
        fed = targets.measure(worker.module.student, iter(feeder))
        if targets.first_stop < stop:
            feeder = stack.enter_context(feed(stop))
            feeder.without = worker.module.quarantined
            fed = iter(feeder)
        worker.train(fed, pauses or Pauses(), clock)


class _Worker:
    def __init__(self, run: Run, seat: Seat, persistence: Persistence, meter: CostMeter) -> None:
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
        self.module = DistillModule(student, run.teachers, view, config) if distils else ClassifyModule(student, view)
        self.module.to(seat.device).train()
        self.persistence, self.state = persistence, persistence.state
        self.loss_state = LossState(self.module)
        persistence.restore_weights(self.module, self.loss_state)
        self.running = RunningState(self.module)
        regularize(self.module, self.spec.train)
        config, start = self.spec.distill.target_norm, self.state.global_step
        saved = persistence.target_norm
        self.targets = RunningNorm(student, run.teachers, config, seat.device, saved, start)
        self.engine = build_engine(self.module, self.spec, self.grains.per_rank)
        persistence.restore_optimizer(self.engine, self.module)
        self.running.sync()
        self.ema: Ema | None = None
        if self.spec.train.enable_ema:
            self.ema = Ema(self.engine, trainable(self.module), self._statistics(), self.spec.train.ema_decay)
            persistence.restore_average(self.ema)
        self.module.quarantined = set(self.state.quarantined)
        self.guard = NonFiniteGuard(self.spec.train, self.module, seat.rank)
        self.ledger = Ledger(run.folder / "ledger", seat.rank, self.state.attempt)
        self.reporter, self.meter = Reporter(run, seat.rank), meter

    def close(self) -> None:
        """Write what the ledger and the reporter hold back."""
        self.ledger.flush()
        self.reporter.close()

    def train(
        self, feed: Iterator[tuple[Batch, dict[str, Pending]]], pauses: Pauses, clock: AttemptClock
    ) -> None:
        """Take every step that is left, and write the checkpoints that fall due; leave where asked to, with one."""
        clock.ready()
        for step in range(self.state.global_step, self.run.total_steps):
            pauses.begin_step()
            record = self._step(step, feed)
            clock.stepped()
            self.state.global_step = step + 1
            self.state.samples_consumed = (step + 1) * self.spec.global_batch_size
            self.state.epoch = (step + 1) // self.run.steps_per_epoch
            self.state.quarantined = sorted(self.module.quarantined)
            self.meter.charge(record)
            self.state.teacher_cost = self.meter.counted()
            self.reporter.step(record, self.meter.bill)
            validates = validation_due(self.run, step + 1)
            pause = pauses.asked()
            if validates or pause or self.persistence.due(step + 1):
                clock.check_lease()
                self.ledger.flush()
                exact, losses = self.running.exact(), self.loss_state.tensors()
                average = self.ema.whole() if self.ema else {}
                kept = (self.state, exact, losses, average, self.targets.state())
                path = self.persistence.save(self.engine, self.module, *kept)
                self.reporter.checkpoint(path, step + 1, self.meter.bill)
                if validates and not pause:
                    self._validate(path, step + 1)
            if pause and step + 1 < self.run.total_steps:
                raise pause

    def _validate(self, checkpoint: Path, step: int) -> None:
        if self.seat.rank == 0:
            self.reporter.validation(validate(self.run, checkpoint), step)
        group.barrier()

    def _step(self, step: int, feed: Iterator[tuple[Batch, dict[str, Pending]]]) -> StepRecord:
        begin = time.perf_counter()
        record = StepRecord(step, self._set_learning_rate(step))
        scale = self.seat.world_size * self.grains.per_rank / self.run.micro_batches
        expected = self.grains.of_rank(step, self.seat.rank)
        self.guard.begin_step()
        used: list[tuple[np.ndarray, np.ndarray, str]] = []  # positions, ids, terms that were not finite
        for place, grain in enumerate(expected):
            waited = time.perf_counter()
            batch, answers = self._next(step, feed)
            self._check(batch, grain, step)
            micro = self._micro_batch(batch, answers, record)
            record.wait += time.perf_counter() - waited
            # Where the step is lost already, its micro-batches are still taken from the stream.
            if not self.guard.tripped:
                self._seed_draws(step, place * self.seat.world_size + self.seat.rank)
                self._learn(step, batch, micro, record, scale, last=place == len(expected) - 1)
            terms = self._not_finite()
            if batch.grain >= 0:
                self.ledger.record(step, batch)
                self.bad.see(batch)
                used.append((batch.position, batch.sample_id, terms))
        for positions, ids, terms in used if self.guard.tripped else ():
            reason = f"non_finite: {terms}" if terms else "skipped_step"
            self.ledger.rejected(step, self.seat.rank, positions, ids, [reason] * len(ids))
        with group.deciding():
            self._end_step(step)
        record.seconds = time.perf_counter() - begin
        record.reduce(self.run.micro_batches, self.seat.device, self.guard.tripped)
        with group.deciding():
            self.bad.judge(step)
        return record

    def _learn(self, step: int, batch: Batch, micro: MicroBatch, record: StepRecord, scale: float, last: bool) -> None:
        real = batch.grain >= 0
        self.running.micro_batch(real)
        self.loss_state.micro_batch(real)
        with arithmetic(self.spec, self.seat.device):
            losses = self.engine(micro)
        if not self.guard.check(step, batch, losses):
            return
        self.engine.set_gradient_accumulation_boundary(last)
        self.engine.backward(losses["loss"] * (scale if real else 0.0))
        self.engine.step()
        if real:
            record.add(losses)

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
        if self.guard.tripped:
            ds_compat.discard_gradients(self.engine)
            self.guard.decide(step)
        else:
            self.guard.passed()
            spectral.follow(self.module)
        self.running.step(commit=not self.guard.tripped)
        self.loss_state.step(commit=not self.guard.tripped)
        self.targets.end_step(step, commit=not self.guard.tripped)
        # Finite losses may have had gradients that are not: where DeepSpeed sees that, it moves no weight.
        if not self.guard.tripped and self.engine.was_step_applied():
            self.state.optimizer_steps += 1
            if self.ema:
                self.ema.step(self._statistics())

    def _statistics(self) -> dict[str, torch.Tensor]:
        """BatchNorm statistics in fp32 by the student's names."""
        return {name.removeprefix("student."): value for name, value in self.running.exact().items()}

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
        # Only the student's view is needed here; the teachers' went to the teachers.
        view = batch.views[self.run.student_view]
        micro = MicroBatch(
            {self.run.student_view: torch.tensor(view.shown).to(device)},
            torch.tensor(batch.weight).to(device),
            torch.tensor(batch.label).to(device),
            factors=self.partitions.factors(batch.grain) if batch.grain >= 0 else {},
        )
        for teacher in self.run.teachers:
            if batch.grain < 0 or micro.factors.get(teacher.name) == 0:
                micro.targets[teacher.name] = self._no_features(teacher.name, len(batch))
                continue
            if teacher.name in self.module.quarantined:
                continue
            try:
                packed = answers[teacher.name]()
            except TeacherSilent as error:
                # As if it had said NaN: all ranks then take the decision that the spec names.
                self.guard.reasons.append(str(error))
                micro.targets[teacher.name] = self._no_features(teacher.name, len(batch)).map(lambda t: t * math.nan)
                continue
            record.answered(teacher.name, packed)
            micro.targets[teacher.name] = unpack(packed).map(lambda t: t.to(device))
            overlap = overlap_of(view, batch.views[teacher.view]) if "spatial" in teacher.wanted else None
            if overlap is not None:
                micro.overlaps[teacher.name] = overlap.to(device)
            self.targets.see(teacher.name, micro.targets[teacher.name], micro.weight, batch.views.get(teacher.view))
        return micro

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
