"""Measure the teachers' targets over the run's first batches, before the first step."""

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

KEPT_BYTES = 2**30  # most memory for batches that are kept for their steps


class TargetPass:
    """Measure the teachers' targets over the first batches; keep these in memory for their steps if they fit.

    Attributes:
        first_stop: the step at which the first stream of batches must end. If that is not the end of the run, the
            measurement consumes the stream, and training needs a second one.
    """

    def __init__(self, run: Run, world_size: int, device: torch.device, start: int, meter: CostMeter) -> None:
        """Decide how many batches to measure; read the file of shared statistics, if there is one.

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
        """Set the student's target transforms; this may change weights, so call it before the engine is built.

        Batches are read from ``feeder``, and put back if they are kept in memory.
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
        """Make pretrained heads that return raw features return transformed ones; their raw output stays the same."""
        for name, kind in sorted(student.raw_heads & normed(self._run.teachers).keys()):
            unfold_head(student.heads[name], kind)
        student.raw_heads.clear()

    def _charged(self, fed: Iterable[Fed]) -> Iterator[Fed]:
        """Yield ``fed`` and add its answers to the costs: training requests them a second time."""
        record = StepRecord(0, 0.0)
        for batch, answers in fed:
            yield batch, answers
            for name, answer in answers.items():
                record.answered(name, answer())
        # Every rank reaches this collective, with any number of batches.
        record.reduce(1, self._device)
        self._meter.after_step(record)


def _micro_batch_bytes(run: Run) -> int:
    """Return the number of bytes of a micro-batch and its teachers' answers."""
    pixels = sum(3 * view.size**2 for view in run.views)
    numbers = 0
    for teacher in run.frozen_teachers:
        info, (rows, columns) = run.infos[teacher.name], run.grids[teacher.name]
        numbers += info.summary_dim + rows * columns * info.spatial_dim
    return run.spec.dataset.batch_size * (pixels + 2 * numbers)  # pixels are uint8, features bf16
