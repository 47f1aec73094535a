"""Read the run's first batches before the first step: measure the teachers' targets, and fit heads to them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from radioplat.data.order.micro_batch_schedule import MicroBatchSchedule
from radioplat.design.memory import micro_batch_bytes
from radioplat.design.run import Run
from radioplat.losses.target_transforms.moments import MomentSums
from radioplat.models.student.fold_target_norm import unfold_head
from radioplat.models.student.student import Student
from radioplat.spec.schema.distill import TargetNormFit
from radioplat.teachers.serving.transport import unpack_for
from radioplat.training.accounting.cost_meter import CostMeter
from radioplat.training.feed.feeder import Fed, Feeder
from radioplat.training.hooks.step_record import StepRecord
from radioplat.training.hooks.step_sums import StepSums
from radioplat.training.targets.file import share_moments, shared_moments
from radioplat.training.targets.head_fit import HeadFit, HeadFitted
from radioplat.training.targets.transforms import Key, TargetSums, normed, set_transforms
from radioplat.training.watch.rank_context import RankContext

KEPT_BYTES = 2**30  # most memory for batches that are kept for their steps


class FirstPass:
    """Measure the teachers' targets and fit heads over the first batches; keep these for their steps if they fit.

    Attributes:
        first_stop: the step at which the first stream of batches must end.
        consumes: the pass consumes that stream, and training needs another.
        moments: with ``distill.target_norm.fit: running``, moments of the targets that the pass measured.
    """

    def __init__(
        self, run: Run, context: RankContext, schedule: MicroBatchSchedule, start: int, meter: CostMeter
    ) -> None:
        """Decide how many batches to read; read the file of shared statistics, if there is one.

        Raises:
            SpecError: the shared file of statistics does not fit the teachers.
        """
        self._run, self._device, self._meter = run, context.device, meter
        self._norm = norm = run.spec.distill.target_norm
        self.moments: dict[Key, MomentSums] = {}
        fits = run.head_fit_steps if start == 0 else 0
        before = norm.fit is TargetNormFit.before
        measures = bool(normed(run.teachers)) and start == 0 and (before or fits > 0)
        self._shared = shared_moments(norm.path, run.teachers, run.target_widths) if measures and before else None
        norms = (min(norm.fit_batches, run.total_steps) if before else fits) if measures and self._shared is None else 0
        counts = [len(schedule.of_rank(step, context.rank)) for step in range(max(norms, fits))]
        self._norms, self._fits = sum(counts[:norms]), sum(counts[:fits])
        schedule.fixed_until = max(schedule.fixed_until, start + len(counts))
        self._count = max(self._norms, self._fits)
        self._keeps = self._count * _bytes_each(run) <= KEPT_BYTES
        self.first_stop = run.total_steps if self._keeps else max(norms, fits)
        self.consumes = not self._keeps and self._count > 0

    def measure(self, student: Student, feeder: Feeder) -> list[HeadFitted]:
        """Set the student's target transforms and fit its untrained heads; call it before the engine is built.

        Batches are read from ``feeder``, and put back if they are kept in memory.

        Returns:
            What became of each head that was to be fitted.
        """
        if self._shared is not None:
            set_transforms(student, self._run.teachers, self._shared)
        fitted = []
        if self._count and self._keeps:
            first = list(islice(feeder, self._count))
            fitted = self._read(student, first)
            feeder.put_back(first)
        elif self._count:
            fitted = self._read(student, self._charged(feeder))
        if self._shared is not None or self._count:
            self._unfold(student)
        return fitted

    def _read(self, student: Student, fed: Iterable[Fed]) -> list[HeadFitted]:
        path, teachers = self._norm.path, self._run.teachers
        norms = TargetSums(student, teachers if self._norms else [], self._device, full=path is not None)
        views = {teacher.name: teacher.view for teacher in self._run.frozen_teachers}
        heads = HeadFit(student, self._run.heads_to_fit, self._run.student_view, views, self._device)
        for number, (batch, answers) in enumerate(fed):
            features = {name: unpack_for(answer(), self._run.grids[name]) for name, answer in answers.items()}
            if number < self._norms:
                norms.add(batch, features)
            if number < self._fits:
                heads.add(batch, features)
        moments = norms.finish()
        if self._norm.fit is TargetNormFit.before:
            share_moments(path if moments else None, teachers, {key: sums.moments() for key, sums in moments.items()})
        else:
            self.moments = moments
        return heads.finish() if self._fits else []

    def _unfold(self, student: Student) -> None:
        """Make heads that return raw features return transformed ones; their raw output stays the same."""
        for name, kind in sorted(student.raw_heads & normed(self._run.teachers).keys()):
            if kind not in student.heads[name].architecture.raw_kinds:
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
        sums = StepSums(self._device)
        record.share(sums, {})
        record.reduce(sums, 1)
        self._meter.after_step(record)


def _bytes_each(run: Run) -> int:
    """Return the number of bytes of a micro-batch and its teachers' answers."""
    return micro_batch_bytes(run.spec.dataset.batch_size, run.views, run.frozen_teachers, run.infos, run.grids)
