"""Bring micro-batches to the device ahead of the training thread: wait for answers and copy, in a thread."""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Iterable, Mapping

import torch

from radioplat.common.device_copies import CopyGroup, DeviceCopies, tensor_of, use_device
from radioplat.data.batch import Batch
from radioplat.data.loading.closeable import END_TIMEOUT_S, end_thread
from radioplat.design.memory import AHEAD
from radioplat.design.run import Run
from radioplat.losses.base.grid import Overlap
from radioplat.objectives.micro_batch import MicroBatch
from radioplat.objectives.overlap import overlap_of
from radioplat.spec.schema.cluster import Placement
from radioplat.teachers.serving.client import Pending
from radioplat.teachers.serving.packed_features import Packed
from radioplat.teachers.serving.transport import as_tensor
from radioplat.training.feed.arrival import Arrival
from radioplat.training.feed.feeder import Feeder


class Prefetch:
    """Iterate over the micro-batches of a feeder as :class:`Arrival`; a thread brings up to ``depth`` to the device.

    An arrival is returned as soon as the feeder has its batch. The thread brings them in order, and begins the next
    only while fewer than ``depth`` are on the device that the training thread has not received. An error of the feeder
    is raised in place of its batch; one of a teacher is raised where its answer is asked for.

    On a CPU nothing is copied, and inline teachers compute in the training thread, in turn with the student.

    Args:
        feeder: from now on nobody else may read it; :meth:`close` closes it.
        on_cluster: True if teachers that are not inline run in other processes.
    """

    def __init__(self, feeder: Feeder, run: Run, device: torch.device, on_cluster: bool, depth: int = AHEAD) -> None:
        self._feeder, self._run, self._device, self._depth = feeder, run, device, depth
        self._partitions = run.partitions
        inline = (t.name for t in run.frozen_teachers if not on_cluster or t.service.placement is Placement.inline)
        self._computed_here = frozenset(inline if device.type == "cpu" else ())
        self._copies = DeviceCopies(device, depth)
        self._left_out: frozenset[str] = frozenset()
        self._reading = threading.Lock()  # of the feeder
        self._read: deque[Arrival | BaseException] = deque()  # not returned yet
        self._change = threading.Condition()
        self._coming: deque[Arrival] = deque()  # not brought yet
        self._on_device = 0  # brought, or being brought, and not received
        self._stopped = False
        self._thread = threading.Thread(target=self._run_thread, name="prefetch", daemon=True)
        self._thread.start()

    def __iter__(self) -> Prefetch:
        return self

    def __next__(self) -> Arrival:
        """Wait for the next batch; its tensors may come later."""
        if not self._read:  # else not even while the thread waits for the batch behind it
            with self._reading:
                if not self._read:
                    return self._from_feeder()
        if isinstance(self._read[0], BaseException):
            raise self._read[0]  # stays, for further calls
        arrival = self._read.popleft()
        assert isinstance(arrival, Arrival)
        return arrival

    def leave_out(self, teachers: Iterable[str]) -> None:
        """Ask these teachers (by name) no more, and wait for none of their answers."""
        self._left_out = frozenset(teachers)
        self._feeder.leave_out(self._left_out)

    def close(self, timeout_s: float = END_TIMEOUT_S) -> None:
        """Close the feeder and end the thread; one that waits for a teacher after ``timeout_s`` is left as a daemon."""
        with self._change:
            self._stopped = True
            self._change.notify_all()
        self._feeder.close(timeout_s)
        end_thread(self._thread, lambda: None, timeout_s)

    def _from_feeder(self) -> Arrival:
        """Wait for the feeder's next batch, and queue it for the thread."""
        batch, pending = next(self._feeder)
        arrival = Arrival(batch, pending, self._computed_here, self._received)
        with self._change:
            self._coming.append(arrival)
            self._change.notify_all()
        return arrival

    def _read_ahead(self) -> None:
        """Wait for the feeder's next batch or its error, unless the training thread reads one meanwhile."""
        with self._reading:
            if self._coming or self._stopped:
                return
            try:
                self._read.append(self._from_feeder())
            except BaseException as error:
                self._read.append(error)

    def _received(self) -> None:
        with self._change:
            self._on_device -= 1
            self._change.notify_all()

    def _run_thread(self) -> None:
        """Bring arrivals until the end; runs in the thread."""
        use_device(self._device)
        while (arrival := self._next_to_bring()) is not None:
            self._bring(arrival)
            del arrival  # else its tensors stay in memory while this thread waits for the next

    def _next_to_bring(self) -> Arrival | None:
        """Wait until the device has memory for it, then for the next batch; None after :meth:`close` and at the end."""
        with self._change:
            self._change.wait_for(lambda: self._stopped or self._on_device < self._depth)
        if not self._coming:
            self._read_ahead()
        with self._change:
            if self._stopped or not self._coming:
                return None
            self._on_device += 1
            return self._coming.popleft()

    def _bring(self, arrival: Arrival) -> None:
        """Copy one micro-batch and the answers to it; errors are raised by the training thread that asks for them."""
        try:
            with self._copies.group() as group:
                arrival.bring_inputs(self._inputs(arrival.batch, arrival.pending, group))
                for name, pending in arrival.pending.items():
                    if name not in self._computed_here:
                        arrival.bring_answer(name, self._answer(name, pending, group))
            arrival.end(group.done)
        except BaseException as error:
            arrival.end(error)

    def _answer(self, name: str, pending: Pending, group: CopyGroup) -> Packed | BaseException | None:
        """Wait for an answer and copy it; return what it raised as a result, and None for a teacher left out."""
        if name in self._left_out:
            return None
        try:
            return pending().map(lambda array: group.put(as_tensor(array)))
        except BaseException as error:
            return error

    def _inputs(self, batch: Batch, pending: Mapping[str, Pending], group: CopyGroup) -> list[MicroBatch]:
        """Return each student's micro-batch without targets, on the device; what they have in common is copied once."""

        @functools.cache
        def shown(name: str) -> torch.Tensor:
            """Return the images of a view."""
            return tensor_of(batch.views[name].shown)

        @functools.cache
        def overlap(own: str, other: str) -> Overlap | None:
            """Return the geometry between two views."""
            return overlap_of(batch.views[own], batch.views[other])

        real = batch.micro_batch >= 0
        weight, label = tensor_of(batch.weight), tensor_of(batch.label)
        factors = self._partitions.factors(batch.micro_batch) if real else {}
        inputs = []
        for run in self._run.students:
            own, boxes = run.student_view, batch.views[run.student_view].boxes
            compared = [t for t in run.frozen_teachers if "spatial" in t.wanted or t.bindings]
            overlaps = {t.name: overlap(own, t.view) for t in compared if t.name in pending}
            inner = {name: overlap(own, name) for name in run.inner_views} if real else {}
            inputs.append(
                MicroBatch(
                    {name: shown(name) for name in run.inner_views},
                    weight,
                    label,
                    factors=factors,
                    overlaps={name: each for name, each in overlaps.items() if each is not None},
                    inner_overlaps={name: each for name, each in inner.items() if each is not None},
                    boxes=None if boxes is None else tensor_of(boxes),
                )
            )
        copies: dict[int, torch.Tensor] = {}  # by the identity of a tensor, all of which `inputs` keeps

        def put(tensor: torch.Tensor) -> torch.Tensor:
            """Copy a tensor, once."""
            if id(tensor) not in copies:
                copies[id(tensor)] = group.put(tensor)
            return copies[id(tensor)]

        return [one.map(put) for one in inputs]
