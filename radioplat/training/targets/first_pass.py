"""Read the run's first batches before the first step: measure the teachers' targets, and fit heads to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

from radioplat.data.batch import Batch
from radioplat.data.order.micro_batch_schedule import MicroBatchSchedule
from radioplat.design.memory import micro_batch_bytes
from radioplat.design.run import Run
from radioplat.losses.target_transforms.moments import MomentSums
from radioplat.models.student.fold_target_norm import unfold_head
from radioplat.models.student.student import Student
from radioplat.spec.schema.distill import TargetNormFit
from radioplat.teachers.serving.client import Pending
from radioplat.teachers.serving.transport import unpack_for
from radioplat.training.accounting.cost_meter import CostMeter
from radioplat.training.feed.feeder import Feeder
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
        first_stop: the step at which a stream for this pass alone ends.
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

        Batches that are kept in memory are read from ``feeder``, and put back. If the pass consumes its stream,
        :func:`measure_together` takes the place of this.

        Returns:
            What became of each head that was to be fitted.
        """
        reading = _Reading(self, student)
        if self._count:
            first = list(islice(feeder, self._count))
            for batch, answers in first:
                reading.add(batch, answers)
            feeder.put_back(first)
        return reading.end()

    def _unfold(self, student: Student) -> None:
        """Make heads that return raw features return transformed ones; their raw output stays the same."""
        for name, kind in sorted(student.raw_heads & normed(self._run.teachers).keys()):
            if kind not in student.heads[name].architecture.raw_kinds:
                unfold_head(student.heads[name], kind)
        student.raw_heads.clear()


class _Reading:
    """The sums of a first pass over the batches that it has read."""

    def __init__(self, first: FirstPass, student: Student) -> None:
        self._first, self._student, self._added = first, student, 0
        run, device = first._run, first._device
        if first._shared is not None:
            set_transforms(student, run.teachers, first._shared)
        if first._count:
            views = {teacher.name: teacher.view for teacher in run.frozen_teachers}
            full = first._norm.path is not None
            self._norms = TargetSums(student, run.teachers if first._norms else [], device, full=full)
            self._heads = HeadFit(student, run.heads_to_fit, run.student_view, views, device)

    def add(self, batch: Batch, answers: Mapping[str, Pending]) -> None:
        """Add the next batch, unless the pass has all that it needs."""
        first, number = self._first, self._added
        if number >= first._count:
            return
        features = {name: unpack_for(answer(), first._run.grids[name]) for name, answer in answers.items()}
        if number < first._norms:
            self._norms.add(batch, features)
        if number < first._fits:
            self._heads.add(batch, features)
        self._added += 1

    def end(self) -> list[HeadFitted]:
        """Set the transforms and fit the heads; every rank must call it."""
        first, fitted = self._first, []
        if first._count:
            path, teachers, moments = first._norm.path, first._run.teachers, self._norms.finish()
            if first._norm.fit is TargetNormFit.before:
                share_moments(path if moments else None, teachers, {k: sums.moments() for k, sums in moments.items()})
            else:
                first.moments = moments
            fitted = self._heads.finish() if first._fits else []
        if first._shared is not None or first._count:
            first._unfold(self._student)
        return fitted


def measure_together(passes: Sequence[tuple[FirstPass, Student]], feeder: Feeder) -> list[list[HeadFitted]]:
    """Let the first passes of several students, which consume their stream, read one; training needs another.

    Its answers are added to the costs: training requests them a second time. Every rank must call it.

    Returns:
        What became of each head that was to be fitted, by pass.
    """
    record = StepRecord(0, 0.0)
    readings = [_Reading(first, student) for first, student in passes]
    for batch, answers in feeder:
        for reading in readings:
            reading.add(batch, answers)
        for name, answer in answers.items():
            record.answered(name, answer())
    # Every rank reaches this collective, with any number of batches.
    sums = StepSums(passes[0][0]._device)
    record.share(sums, {})
    record.reduce(sums, 1)
    for first, _ in passes:
        first._meter.share = 1 / len(passes)
        first._meter.after_step(record)
    return [reading.end() for reading in readings]


def _bytes_each(run: Run) -> int:
    """Return the number of bytes of a micro-batch and its teachers' answers."""
    return micro_batch_bytes(run.spec.dataset.batch_size, run.views, run.frozen_teachers, run.infos, run.grids)
