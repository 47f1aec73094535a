"""A micro-batch that a thread brings to the device while the training thread is still busy with those before it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future

import torch

from radioplat.common.device_copies import receive
from radioplat.data.batch import Batch
from radioplat.objectives.micro_batch import MicroBatch
from radioplat.teachers.serving.client import Pending
from radioplat.teachers.serving.packed_features import Packed


class Arrival:
    """A batch, whose tensors and teachers' answers follow in parts.

    The training thread calls :meth:`inputs` and :meth:`answer`, which wait, and then :meth:`receive`; once for each
    student that trains on it.

    Args:
        pending: answers by teacher.
        computed_here: teachers whose answer is computed by the thread that calls :meth:`answer`.
        on_received: called once, when the tensors are handed over to the last reader.

    Attributes:
        batch: complete from the beginning, in host memory.
        readers: how many students have not received it.
    """

    def __init__(
        self,
        batch: Batch,
        pending: Mapping[str, Pending],
        computed_here: Collection[str] = (),
        on_received: Callable[[], None] = lambda: None,
    ) -> None:
        self.batch = batch
        self.pending = pending
        self.computed_here = computed_here
        self.readers = 1
        self._on_received = on_received
        self._inputs: Future[list[MicroBatch]] = Future()
        self._computed: dict[str, Packed | BaseException] = {}  # by the thread that asked
        self._waited = False  # for the copies
        self._answers: dict[str, Future[Packed]] = {n: Future() for n in pending if n not in computed_here}
        self._copied: Future[torch.cuda.Event | None] = Future()

    def inputs(self, place: int = 0) -> MicroBatch:
        """Wait for a student's micro-batch without targets, and return it; :meth:`receive` must follow before its use.

        Args:
            place: of the student in the run.

        Raises:
            Exception: what copying it raised.
        """
        return self._inputs.result()[place]

    def answer(self, name: str) -> Packed:
        """Wait for the answer of a teacher, or compute it; :meth:`receive` must follow before it is used.

        Raises:
            TeacherSilent: there is none.
            Exception: what the teacher, or copying its answer, raised.
        """
        if name not in self.computed_here:
            return self._answers[name].result()
        if name not in self._computed:
            try:
                self._computed[name] = self.pending[name]()
            except Exception as error:
                self._computed[name] = error
        answer = self._computed[name]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def receive(self) -> None:
        """Make the current stream wait for the copies, and take over the tensors; each reader calls it once, after all
        parts."""
        done = self._copied.result()
        if done is not None and not self._waited:
            packed = [f.result() for f in self._answers.values() if not f.cancelled() and f.exception() is None]
            tensors = [tensor for one in self._inputs.result() for tensor in one.tensors()]
            receive(done, [*tensors, *(array for one in packed for array in one.arrays)])
        self._waited = True
        self.readers -= 1
        if self.readers == 0:  # whoever keeps this object would keep the tensors on the device
            self.pending, self._answers, self._computed, self._inputs = {}, {}, {}, Future()
            self._on_received()

    def bring_inputs(self, inputs: list[MicroBatch]) -> None:
        """Hand over the micro-batch without targets, as each student gets it."""
        self._inputs.set_result(inputs)

    def bring_answer(self, name: str, answer: Packed | BaseException | None) -> None:
        """Hand over the answer of a teacher, or what it raised; None if nobody wants it any more."""
        if answer is None:
            self._answers[name].cancel()
        elif isinstance(answer, BaseException):
            self._answers[name].set_exception(answer)
        else:
            self._answers[name].set_result(answer)

    def end(self, done: torch.cuda.Event | BaseException | None) -> None:
        """Hand over the event after the last copy, or an error for all parts that are missing."""
        if not isinstance(done, BaseException):
            self._copied.set_result(done)
            return
        parts: list[Future] = [self._inputs, *self._answers.values(), self._copied]
        for part in parts:
            if not part.done():
                part.set_exception(done)
