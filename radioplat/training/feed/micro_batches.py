"""Build the module's input micro-batches from what arrived on the device."""

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
from radioplat.models.features import Features
from radioplat.objectives.micro_batch import MicroBatch
from radioplat.objectives.objective import Objective
from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.spec.schema.cluster import Placement
from radioplat.teachers.serving.packed_features import Packed
from radioplat.teachers.serving.transport import unpack_for
from radioplat.training.feed.arrival import Arrival
from radioplat.training.hooks.step_record import StepRecord
from radioplat.training.watch.phases import DATA, INLINE, TEACHER, Phases

OnAnswer = Callable[[str, Features, torch.Tensor, View | None], None]


class MicroBatches:
    """Check batches against the sample order, and wait until they and the teachers' answers are on the device.

    Args:
        on_cluster: True if teachers that are not inline run in other processes.
        objective: answers of its quarantined teachers are ignored.
        phases: set to ``teacher`` or ``inline teacher`` while waiting for an answer.
        place: of the student in the run.
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
        place: int = 0,
    ) -> None:
        self._run, self._order, self._device, self._on_cluster = run, order, device, on_cluster
        self._objective, self._phases = objective, phases
        self._on_answer, self._on_silence, self._place = on_answer, on_silence, place
        self._zeros: dict[tuple[str, int], Features] = {}

    def micro_batch(self, step: int, micro_batch: int, arrival: Arrival, record: StepRecord) -> MicroBatch:
        """Wait until micro-batch ``micro_batch`` of ``step`` and the answers to it are on the device; return them.

        Args:
            record: updated with the answers and the time spent waiting for them.

        Raises:
            TrainingError: the batch differs from the sample order.
        """
        batch = arrival.batch
        self._check(batch, micro_batch, step)
        begin = time.perf_counter()
        with self._phases(DATA):
            micro = arrival.inputs(self._place)
        record.wait_data += time.perf_counter() - begin
        answers = {}
        for teacher in self._run.frozen_teachers:
            if self._computes(teacher.name, micro, batch) and teacher.name not in self._objective.quarantined:
                answers[teacher.name] = self._answer(teacher, arrival, record)
        begin = time.perf_counter()
        with self._phases(TEACHER):  # nothing is left to wait for, except an answer of a teacher just quarantined
            arrival.receive()
        record.wait_teachers += time.perf_counter() - begin
        size = len(batch)
        for teacher in self._run.frozen_teachers:
            name = teacher.name
            if not self._computes(name, micro, batch):
                micro.targets[name] = self._no_features(name, size)
            elif (packed := answers.get(name)) is not None:
                record.answered(name, packed)
                micro.targets[name] = unpack_for(packed, self._run.grids[name])
                self._on_answer(name, micro.targets[name], micro.weight, batch.views.get(teacher.view))
                continue
            elif name in answers:
                # Use NaN as the answer: the NonFiniteGuard then applies the spec's policy on all ranks.
                micro.targets[name] = self._no_features(name, size).map(lambda t: t * math.nan)
            micro.overlaps.pop(name, None)
        return micro

    @staticmethod
    def _computes(name: str, micro: MicroBatch, batch: Batch) -> bool:
        """Return whether the teacher computes this micro-batch."""
        return batch.micro_batch >= 0 and micro.factors.get(name) != 0

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

    def _answer(self, teacher: ResolvedTeacher, arrival: Arrival, record: StepRecord) -> Packed | None:
        """Wait for a teacher's answer and return it, None if there is none; a CPU's inline teacher computes it here."""
        here = not self._on_cluster or teacher.service.placement is Placement.inline
        begin = time.perf_counter()
        try:
            with self._phases(INLINE if here else TEACHER):
                return arrival.answer(teacher.name)
        except TeacherSilent as error:
            self._on_silence(str(error))
            return None
        finally:
            record.wait_teachers += time.perf_counter() - begin

    def _no_features(self, name: str, size: int) -> Features:
        """Return zeros in the shapes of a teacher's answer, for padding and for micro-batches that it does not get.

        They are made once and shared by all such micro-batches, so nothing may write to them.
        """
        if (name, size) not in self._zeros:
            info, grid, device = self._run.infos[name], self._run.grids[name], self._device
            self._zeros[name, size] = Features(
                torch.zeros(size, info.summary_dim, device=device),
                torch.zeros(size, *grid, info.spatial_dim, device=device),
                {
                    "logits": torch.zeros(size, max(1, info.logits_dim), device=device),
                    **{key: torch.zeros(size, *shape, device=device) for key, shape in info.named.items()},
                },
            )
        return self._zeros[name, size]
