"""Send micro-batches to the teachers ahead of the student, in a thread, and queue them in order."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from radioplat.common.device_copies import use_device
from radioplat.data.batch import Batch
from radioplat.data.loading.closeable import END_TIMEOUT_S, CloseableIterator, end_thread
from radioplat.data.storage.outage import is_waiting
from radioplat.design.partitions import Partitions
from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.spec.schema.root import Spec
from radioplat.teachers.serving.client import Pending, TeacherClient
from radioplat.training.feed.mosaic_client import ask_in_mosaic

Fed = tuple[Batch, dict[str, Pending]]  # a micro-batch, and the pending answers of its teachers by name
_END = object()
_WAITING_S = 2.0  # longest wait for a thread that waits for storage


class Feeder:
    """Read micro-batches in order, send each teacher its view, and queue up to ``depth`` (batch, pending answers).

    Padding is queued unchanged and not sent to teachers. An error of the stream or of a teacher is raised by ``next``
    in place of the batch.

    Args:
        partitions: says which teachers get which micro-batch; default: all teachers get all.
        device: of inline teachers, which compute in the feeder's thread if it is a GPU.
    """

    def __init__(
        self,
        batches: Iterator[Batch],
        clients: dict[str, TeacherClient],
        teachers: list[ResolvedTeacher],
        depth: int,
        partitions: Partitions | None = None,
        device: torch.device | None = None,
    ) -> None:
        self._batches, self._clients, self._teachers = batches, clients, teachers
        self._partitions, self._device = partitions, device
        self._queue: queue.Queue = queue.Queue(maxsize=max(1, depth))
        self._put_back: deque[Fed] = deque()
        self._left_out: frozenset[str] = frozenset()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feeder", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Fed]:
        return self

    def __next__(self) -> Fed:
        if self._put_back:
            return self._put_back.popleft()
        if self._stop.is_set():
            raise StopIteration
        item = self._queue.get()
        if item is _END:
            self._queue.put(_END)  # for further calls
            raise StopIteration
        if isinstance(item, BaseException):
            raise item
        return item

    def put_back(self, items: Iterable[Fed]) -> None:
        """Put ``items`` back, so that they are returned next."""
        self._put_back.extendleft(reversed([*items]))

    def leave_out(self, teachers: Iterable[str]) -> None:
        """Send no more requests to these teachers (by name), from the next micro-batch of the stream on."""
        self._left_out = frozenset(teachers)

    def close(self, timeout_s: float = END_TIMEOUT_S) -> None:
        """End the thread and its stream; a thread that still runs after ``timeout_s`` seconds is left as a daemon.

        A read that waits for storage cannot be woken, and may wait longer than a notice of preemption allows.
        """
        self._stop.set()
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(_END)  # for a thread that waits for the next batch
        if is_waiting():
            timeout_s = min(timeout_s, _WAITING_S)
        end_thread(self._thread, self._wake, timeout_s)

    def _wake(self) -> None:
        if isinstance(self._batches, CloseableIterator):
            self._batches.close()

    def _run(self) -> None:
        """Feed all batches, then queue the end mark, or the error that ended the stream; runs in the thread."""
        if self._device is not None:
            use_device(self._device)
        closes = hasattr(self._batches, "close")
        batches: Any = self._batches
        try:
            with contextlib.closing(batches) if closes else contextlib.nullcontext():
                self._feed()
            self._put(_END)
        except BaseException as error:
            self._put(error)

    def _feed(self) -> None:
        for batch in self._batches:
            answers = {}
            if batch.micro_batch >= 0:
                answers = self._ask(batch)
                _ = batch.checksums  # computed here for the ledger, so that the student does not wait
            if not self._put((batch, answers)):
                return

    def _ask(self, batch: Batch) -> dict[str, Pending]:
        shared: dict[tuple[type, str], Any] = {}  # teachers with the same view share the request data
        answers = {}
        factors = self._partitions.factors(batch.micro_batch) if self._partitions else {}
        for teacher in self._teachers:
            if teacher.name in self._left_out or factors.get(teacher.name) == 0:
                continue
            client = self._clients[teacher.name]
            if teacher.mosaic > 1:
                answers[teacher.name] = ask_in_mosaic(client, teacher, batch.views[teacher.view], batch.micro_batch)
                continue
            key = (type(client), teacher.view)
            if key not in shared:
                shared[key] = client.share(batch.views[teacher.view].shown, batch)
            answers[teacher.name] = client.submit(shared[key], batch.micro_batch)
        return answers

    def _put(self, item) -> bool:
        while not self._stop.is_set():
            try:
                self._queue.put(item, timeout=0.2)
                return True
            except queue.Full:
                continue
        return False


def prefetch_depth(spec: Spec) -> int:
    """Return how many micro-batches are decoded and sent to the teachers ahead of the student."""
    return spec.dataset.prefetch_batches if spec.dataset.train_dataset.prefetch else 1
