"""The pass over the run's first batches that measures the teachers' targets, before the first step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

import torch

from radioplat.design.run import Run
from radioplat.models.student.fold_target_norm import unfold_head
from radioplat.models.student.student import Student
from radioplat.spec.schema.distill import TargetNormFit
from radioplat.training.accounting.cost_meter import CostMeter
from radioplat.training.feed.feeder import Fed, Feeder
from radioplat.training.hooks.step_record import StepRecord
from radioplat.training.targets.file import share_moments, shared_moments
from radioplat.training.targets.transforms import fit_target_norm, normed, set_transforms

KEPT_BYTES = 2**30  # of batches kept from the pass for the steps that they belong to


class TargetPass:
    """The batches to measure, and whether they stay in memory for their own steps.

    Attributes:
        first_stop: the step up to which the first stream of batches is to reach. Where that is not the run's end, the
            pass uses the stream up, and the steps need another one.
    """

    def __init__(self, run: Run, world_size: int, device: torch.device, start: int, meter: CostMeter) -> None:
        """
        Raises:
            SpecError: the shared file of statistics does not fit the teachers.
        """
        self._run, self._device, self._meter = run, device, meter
        self._norm = norm = run.spec.distill.target_norm
        measures = bool(normed(run.teachers)) and norm.fit is TargetNormFit.before and start == 0
        self._shared = shared_moments(norm.path, run.teachers, run.target_widths) if measures else None
        steps = min(norm.fit_batches, run.total_steps) if measures and self._shared is None else 0
        self._count = steps * run.micro_batch_schedule(world_size).per_rank
        self._keeps = self._count * _micro_batch_bytes(run) <= KEPT_BYTES
        self.first_stop = run.total_steps if self._keeps else steps

    def measure(self, student: Student, feeder: Feeder) -> None:
        """Set the student's target transforms, before the engine is built: this may change weights.

        The batches are taken from ``feeder``, and put back where they stay in memory.
        """
        if self._shared is not None:
            set_transforms(student, self._run.teachers, self._shared)
            self._unfold(student)
        elif self._count and self._keeps:
            first = list(islice(feeder, self._count))
            self._fit(student, first)
            feeder.put_back(first)
        elif self._count:
            self._fit(student, self._charged(feeder))

    def _fit(self, student: Student, fed: Iterable[Fed]) -> None:
        path, teachers = self._norm.path, self._run.teachers
        moments = fit_target_norm(student, teachers, fed, self._device, full=path is not None)
        share_moments(path, teachers, moments)
        self._unfold(student)

    def _unfold(self, student: Student) -> None:
        """Heads that were trained elsewhere go on saying the same of raw features."""
        for name, kind in sorted(student.raw_heads & normed(self._run.teachers).keys()):
            unfold_head(student.heads[name], kind)
        student.raw_heads.clear()

    def _charged(self, fed: Iterable[Fed]) -> Iterator[Fed]:
        """Yield ``fed`` and charge its answers: they are asked for again when the student sees them."""
        record = StepRecord(0, 0.0)
        for batch, answers in fed:
            yield batch, answers
            for name, answer in answers.items():
                record.answered(name, answer())
        # Every rank comes here, however many batches it had.
        record.reduce(1, self._device)
        self._meter.after_step(record)


def _micro_batch_bytes(run: Run) -> int:
    """Bytes of a micro-batch and of the answers to it."""
    pixels = sum(3 * view.size**2 for view in run.views)
    numbers = 0
    for teacher in run.frozen_teachers:
        info, (rows, columns) = run.infos[teacher.name], run.grids[teacher.name]
        numbers += info.summary_dim + rows * columns * info.spatial_dim
    return run.spec.dataset.batch_size * (pixels + 2 * numbers)  # uint8 and bf16
