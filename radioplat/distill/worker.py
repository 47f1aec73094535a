"""The loop of one training worker, the same in local mode and under Ray Train."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from radioplat.data.batch import Batch
from radioplat.data.ledger import Ledger
from radioplat.data.run_data import RunData
from radioplat.distill import ds_compat
from radioplat.distill.engine import arithmetic, build_engine
from radioplat.distill.feeder import Feeder
from radioplat.distill.module import ClassifyModule, DistillModule, MicroBatch
from radioplat.distill.non_finite import NonFiniteGuard
from radioplat.distill.optimizer import learning_rate
from radioplat.distill.persist import Persistence
from radioplat.distill.prepare import Run, build_student
from radioplat.distill.reporter import Reporter, StepRecord
from radioplat.distill.running_state import RunningState
from radioplat.errors import TrainingError
from radioplat.models.features import Features
from radioplat.teachers.client import Pending, TeacherClient
from radioplat.teachers.transport import unpack


@dataclass(frozen=True)
class Seat:
    """Where a worker sits."""

    rank: int
    world_size: int
    device: torch.device


OpenBatches = Callable[[int], Iterator[Batch]]  # first step -> this rank's micro-batches from there on


def run_worker(run: Run, seat: Seat, clients: dict[str, TeacherClient], open_batches: OpenBatches) -> None:
    """Train from the newest checkpoint (or from nothing) to the last step.

    The process group must be up.

    Raises:
        TrainingError: the data did not follow the order, or non-finite losses ended the run.
    """
    worker = _Worker(run, seat)
    batches = open_batches(worker.state.global_step)
    feeder = Feeder(batches, clients, run.teachers, run.spec.dataset.prefetch_batches)
    try:
        worker.train(iter(feeder))
    finally:
        feeder.close()
        worker.close()


class _Worker:
    def __init__(self, run: Run, seat: Seat) -> None:
        self.run, self.seat, self.spec = run, seat, run.spec
        self.grains = run.grains(seat.world_size)
        self.order = RunData.load(run.data_dir, self.spec.dataset.train_dataset).order
        student = build_student(run)
        view = run.student_view
        self.module = DistillModule(student, run.teachers, view) if run.task == "distill" else ClassifyModule(student, view)
        self.module.to(seat.device).train()
        self.persistence = Persistence(run, seat.rank, seat.world_size)
        self.state = self.persistence.restore_weights(self.module)
        self.running = RunningState(self.module)
        self.engine = build_engine(self.module, self.spec, self.grains.per_rank)
        self.persistence.restore_optimizer(self.engine, self.module)
        self.running.sync()
        self.module.quarantined = set(self.state.quarantined)
        self.guard = NonFiniteGuard(self.spec.train, self.module, seat.rank)
        self.ledger = Ledger(run.folder / "ledger", seat.rank, self.state.attempt)
        self.reporter = Reporter(run, seat.rank)

    def close(self) -> None:
        self.ledger.flush()
        self.reporter.close()

    def train(self, feed: Iterator[tuple[Batch, dict[str, Pending]]]) -> None:
        for step in range(self.state.global_step, self.run.total_steps):
            record = self._step(step, feed)
            self.state.global_step = step + 1
            self.state.samples_consumed = (step + 1) * self.spec.global_batch_size
            self.state.epoch = (step + 1) // self.run.steps_per_epoch
            self.state.quarantined = sorted(self.module.quarantined)
            self.reporter.step(record)
            if self.persistence.due(step + 1):
                self.ledger.flush()
                path = self.persistence.save(self.engine, self.module, self.state)
                self.reporter.checkpoint(path, step + 1)

    def _step(self, step: int, feed: Iterator[tuple[Batch, dict[str, Pending]]]) -> StepRecord:
        begin = time.perf_counter()
        record = StepRecord(step, self._set_learning_rate(step))
        scale = self.seat.world_size * self.grains.per_rank / self.run.micro_batches
        expected = self.grains.of_rank(step, self.seat.rank)
        self.guard.begin_step()
        for place, grain in enumerate(expected):
            waited = time.perf_counter()
            batch, answers = next(feed)
            self._check(batch, grain, step)
            micro = self._micro_batch(batch, answers, record)
            record.wait += time.perf_counter() - waited
            if self.guard.tripped:
                continue  # the step is lost; its micro-batches are still taken from the stream
            real = batch.grain >= 0
            self.running.micro_batch(real)
            self._seed_draws(step, place * self.seat.world_size + self.seat.rank)
            with arithmetic(self.spec, self.seat.device):
                losses = self.engine(micro)
            if not self.guard.check(step, batch, losses):
                continue
            self.engine.set_gradient_accumulation_boundary(place == len(expected) - 1)
            self.engine.backward(losses["loss"] * (scale if real else 0.0))
            self.engine.step()
            if real:
                record.add(losses)
                self.ledger.record(step, batch)
        self._end_step(step)
        record.seconds = time.perf_counter() - begin
        record.reduce(self.run.micro_batches, self.seat.device, self.guard.tripped)
        return record

    def _end_step(self, step: int) -> None:
        if self.guard.tripped:
            ds_compat.discard_gradients(self.engine)
            self.guard.decide(step)
        else:
            self.state.optimizer_steps += 1
            self.guard.passed()
        self.running.step(commit=not self.guard.tripped)

    def _set_learning_rate(self, step: int) -> float:
        rate = learning_rate(self.spec.train.optim, step, self.run.total_steps, self.run.steps_per_epoch)
        for group in self.engine.optimizer.param_groups:
            group["lr"] = rate
        return rate

    def _seed_draws(self, step: int, micro_batch: int) -> None:
        """Every draw of a forward (CPE, DropPath) follows from seed, step and micro-batch; nothing is carried."""
        torch.manual_seed(int(np.random.SeedSequence([self.spec.train.seed, step, micro_batch]).generate_state(1, np.uint64)[0] >> 1))

    def _check(self, batch: Batch, grain: int, step: int) -> None:
        size = self.spec.dataset.batch_size
        if batch.grain != grain:
            raise TrainingError(f"step {step}: micro-batch {batch.grain} arrived where the order has {grain}", where="data")
        if grain < 0:
            return
        expected = self.order.slice(grain * size, (grain + 1) * size).sample_id
        if not np.array_equal(batch.sample_id, expected):
            first = int(np.flatnonzero(batch.sample_id != expected)[0])
            raise TrainingError(
                f"step {step}: sample {batch.sample_id[first]} arrived at position {grain * size + first}, "
                f"where the order has {expected[first]}", where="data",
            )

    def _micro_batch(self, batch: Batch, answers: dict[str, Pending], record: StepRecord) -> MicroBatch:
        device = self.seat.device
        # Only the student's view is needed here; the teachers' went to the teachers.
        pixels = batch.views[self.run.student_view].pixels
        micro = MicroBatch(
            {self.run.student_view: torch.tensor(pixels).to(device)},
            torch.tensor(batch.weight).to(device),
            torch.tensor(batch.label).to(device),
        )
        for teacher in self.run.teachers:
            if batch.grain < 0:
                micro.targets[teacher.name] = self._no_features(teacher.name, len(batch))
                continue
            packed = answers[teacher.name]()
            record.teacher_seconds[teacher.name] = record.teacher_seconds.get(teacher.name, 0.0) + packed.seconds
            micro.targets[teacher.name] = unpack(packed).map(lambda t: t.to(device))
        return micro

    def _no_features(self, name: str, size: int) -> Features:
        """Zeros in the shapes of a teacher's answer, for padding."""
        info, grid, device = self.run.infos[name], self.run.grids[name], self.seat.device
        return Features(
            torch.zeros(size, info.summary_dim, device=device),
            torch.zeros(size, *grid, info.spatial_dim, device=device),
            {"logits": torch.zeros(size, max(1, info.logits_dim), device=device)},
        )

