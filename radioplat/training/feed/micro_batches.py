"""Build the module's input micro-batches from the data stream and the teachers' answers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
import torch

from radioplat.data.batch import Batch, View
from radioplat.data.order.order import SampleOrder
from radioplat.design.run import Run
from radioplat.errors import TeacherSilent, TrainingError
from radioplat.losses.base.grid import Overlap
from radioplat.models.features import Features
from radioplat.objectives.micro_batch import MicroBatch
from radioplat.objectives.objective import Objective
from radioplat.objectives.overlap import overlap_of
from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.spec.schema.cluster import Placement
from radioplat.teachers.serving.client import Pending
from radioplat.teachers.serving.packed_features import Packed
from radioplat.teachers.serving.transport import unpack
from radioplat.training.hooks.step_record import StepRecord
from radioplat.training.watch.phases import INLINE, TEACHER, Phases

OnAnswer = Callable[[str, Features, torch.Tensor, View | None], None]


class MicroBatches:
    """Check batches against the sample order, wait for the teachers' answers, and copy both to the device.

    Args:
        on_cluster: True if teachers that are not inline run in other processes.
        objective: answers of its quarantined teachers are ignored.
        phases: set to ``teacher`` or ``inline teacher`` while waiting for an answer.
        on_answer: called with each teacher's name, features, sample weights and view.
        on_silence: called with the reason if a teacher gave no answer.
    """

    def __init__(
        self,
        run: Run,
        order: SampleOrder,
        device: torch.device,
        on_cluster: bool,
        objective: Objective,
        phases: Phases,
        on_answer: OnAnswer = lambda *answer: None,
        on_silence: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self._run, self._order, self._device, self._on_cluster = run, order, device, on_cluster
        self._objective, self._phases = objective, phases
        self._on_answer, self._on_silence = on_answer, on_silence
        self._partitions = run.partitions

    def micro_batch(
        self, step: int, micro_batch: int, batch: Batch, answers: dict[str, Pending], record: StepRecord
    ) -> MicroBatch:
        """Wait for the teachers' answers; return them and micro-batch ``micro_batch`` of ``step`` on the device.

        Args:
            record: updated with the answers and the time spent waiting for them.

        Raises:
            TrainingError: the batch differs from the sample order.
        """
        self._check(batch, micro_batch, step)
        device = self._device
        # Only the views used inside the module: views of other teachers were sent to them.
        view = batch.views[self._run.student_view]
        micro = MicroBatch(
            {name: torch.tensor(batch.views[name].shown) for name in self._run.inner_views},
            torch.tensor(batch.weight),
            torch.tensor(batch.label),
            factors=self._partitions.factors(batch.micro_batch) if batch.micro_batch >= 0 else {},
            inner_overlaps=self._overlaps_inside(batch),
            boxes=None if view.boxes is None else torch.tensor(view.boxes),
        ).to(device)
        for teacher in self._run.frozen_teachers:
            if batch.micro_batch < 0 or micro.factors.get(teacher.name) == 0:
                micro.targets[teacher.name] = self._no_features(teacher.name, len(batch))
                continue
            if teacher.name in self._objective.quarantined:
                continue
            try:
                packed = self._answer(teacher, answers[teacher.name], record)
            except TeacherSilent as error:
                # Use NaN as the answer: the NonFiniteGuard then applies the spec's policy on all ranks.
                self._on_silence(str(error))
                micro.targets[teacher.name] = self._no_features(teacher.name, len(batch)).map(lambda t: t * math.nan)
                continue
            record.answered(teacher.name, packed)
            micro.targets[teacher.name] = unpack(packed).map(lambda t: t.to(device))
            maps = "spatial" in teacher.wanted or teacher.bindings
            overlap = overlap_of(view, batch.views[teacher.view]) if maps else None
            if overlap is not None:
                micro.overlaps[teacher.name] = overlap.to(device)
            self._on_answer(teacher.name, micro.targets[teacher.name], micro.weight, batch.views.get(teacher.view))
        return micro

    def _check(self, batch: Batch, micro_batch: int, step: int) -> None:
        size = self._run.spec.dataset.batch_size
        if batch.micro_batch != micro_batch:
            message = f"step {step}: micro-batch {batch.micro_batch} arrived where the order has {micro_batch}"
            raise TrainingError(message, where="data")
        if micro_batch < 0:
            return
        expected = self._order.slice(micro_batch * size, (micro_batch + 1) * size).sample_id
        if not np.array_equal(batch.sample_id, expected):
            first = int(np.flatnonzero(batch.sample_id != expected)[0])
            raise TrainingError(
                f"step {step}: sample {batch.sample_id[first]} arrived at position {micro_batch * size + first}, "
                f"where the order has {expected[first]}",
                where="data",
            )

    def _overlaps_inside(self, batch: Batch) -> dict[str, Overlap]:
        """Return the overlaps of the student's view with the views of the teachers inside the module, by view name."""
        views = self._run.inner_views if batch.micro_batch >= 0 else ()
        overlaps = {name: overlap_of(batch.views[self._run.student_view], batch.views[name]) for name in views}
        return {name: overlap for name, overlap in overlaps.items() if overlap is not None}

    def _answer(self, teacher: ResolvedTeacher, pending: Pending, record: StepRecord) -> Packed:
        """Wait for a teacher's answer and return it; a teacher in this process computes it in this call."""
        here = not self._on_cluster or teacher.service.placement is Placement.inline
        begin = time.perf_counter()
        try:
            with self._phases(INLINE if here else TEACHER):
                return pending()
        finally:
            record.wait_teachers += time.perf_counter() - begin

    def _no_features(self, name: str, size: int) -> Features:
        """Return zeros in the shapes of a teacher's answer, for padding and for micro-batches that it does not get."""
        info, grid, device = self._run.infos[name], self._run.grids[name], self._device
        return Features(
            torch.zeros(size, info.summary_dim, device=device),
            torch.zeros(size, *grid, info.spatial_dim, device=device),
            {
                "logits": torch.zeros(size, max(1, info.logits_dim), device=device),
                **{key: torch.zeros(size, *shape, device=device) for key, shape in info.named.items()},
            },
        )
