"""The thread between the data stream and the student: it asks the teachers ahead of time and keeps the order."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from radioplat.data.batch import Batch
from radioplat.data.loading.closeable import END_TIMEOUT_S, CloseableIterator, end_thread
from radioplat.design.partitions import Partitions
from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.spec.schema.root import Spec
from radioplat.teachers.serving.client import Pending, TeacherClient
from radioplat.training.feed.mosaic_client import ask_in_mosaic

Fed = tuple[Batch, dict[str, Pending]]  # a micro-batch, and each asked teacher's answer by name
_END = object()


class Feeder:
    """Takes micro-batches in order, sends each teacher its view, and queues (batch, answers) ``depth`` deep.

    Padding is passed on as it is and no teacher sees it. An error of the stream or of a teacher is raised where the
    batch would have been.

    Args:
        partitions: which teachers are asked at which micro-batch; default: all at each.
    """

    def __init__(
        self,
        batches: Iterator[Batch],
        clients: dict[str, TeacherClient],
        teachers: list[ResolvedTeacher],
        depth: int,
        partitions: Partitions | None = None,
    ) -> None:
        self._batches, self._clients, self._teachers = batches, clients, teachers
        self._partitions = partitions
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
        item = self._queue.get()
        if item is _END:
            self._queue.put(_END)  # for a caller that asks again
            raise StopIteration
        if isinstance(item, BaseException):
            raise item
        return item

    def put_back(self, items: Iterable[Fed]) -> None:
        """Yield ``items`` again, before what follows."""
        self._put_back.extend(items)

    def leave_out(self, teachers: Iterable[str]) -> None:
        """Do not ask these teachers, by name, from the next micro-batch of the stream on."""
        self._left_out = frozenset(teachers)

    def close(self, timeout_s: float = END_TIMEOUT_S) -> None:
        """End the thread and its stream; a thread that still runs after ``timeout_s`` seconds is left as a daemon."""
        self._stop.set()
        end_thread(self._thread, self._wake, timeout_s)

    def _wake(self) -> None:
        if isinstance(self._batches, CloseableIterator):
            self._batches.close()

    def _run(self) -> None:
        """The body of the thread."""
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
                _ = batch.checksums  # the ledger's, ahead of the student and not in its time
            if not self._put((batch, answers)):
                return

    def _ask(self, batch: Batch) -> dict[str, Pending]:
        shared: dict[tuple[type, str], Any] = {}  # teachers with one view share what is sent
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
    """Micro-batches that are decoded and asked of the teachers ahead of the student."""
    return spec.dataset.prefetch_batches if spec.dataset.train_dataset.prefetch else 1
