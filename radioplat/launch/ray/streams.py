"""The micro-batches of one rank, from Ray Data executions that the ranks of a node share."""

from __future__ import annotations

import contextlib
import pickle
import socket
import threading
import time
from collections.abc import Callable, Generator
from functools import partial

import ray
from ray.data import DataIterator
from torch.distributed import TCPStore

from radioplat.common import collectives
from radioplat.data.batch import Batch
from radioplat.data.loading.closeable import CloseableIterator
from radioplat.data.loading.ray_stream import open_stream, read_in_turn, read_stream, steps_per_execution
from radioplat.data.loading.shared_reads import SharedReads
from radioplat.data.order.micro_batch_schedule import MicroBatchSchedule
from radioplat.design.run import Run
from radioplat.training.guards.pause import is_asked_to_pause
from radioplat.training.watch.rank_context import RankContext

_Key = tuple[int, int, int]  # of an execution: numbers of the call of `read` and of the dealing, the first step
_LOOK_S = 0.05  # between two looks for what another rank hands over


class Streams:
    """This rank's micro-batches. Every rank must construct one, in the training thread.

    The first rank of each node opens the executions for its node and hands the iterators over by a store in its
    process. No collective is involved, because ranks may close a stream while others wait for its next execution.

    Args:
        say: gets a line when the coordinator of an execution, or the actor behind ``shared``, has died.
        shared: of several groups of workers; None: there is one.
    """

    def __init__(
        self, run: Run, rank_context: RankContext, say: Callable[[str], None], shared: SharedReads | None = None
    ) -> None:
        self._run, self._rank, self._say, self._shared = run, rank_context.rank, say, shared
        nodes = collectives.gather_objects(ray.get_runtime_context().get_node_id())
        self._ranks = [rank for rank, node in enumerate(nodes) if node == nodes[self._rank]]
        self._store = self._open_store()
        self._reads = 0
        self._held: tuple[float, float | None] = (0.0, None)  # seconds so far, and since when it waits now
        # Ray does not count the handles that other ranks get by the store: without these references the actor behind an
        # execution would end when this rank has read its part, and with it the parts of slower ranks.
        self._open: dict[_Key, list[DataIterator]] = {}

    def read(self, start: int, stop: int, schedule: MicroBatchSchedule) -> CloseableIterator[Batch]:
        """Iterate over this rank's micro-batches of steps ``start`` to ``stop``; every rank must call it."""
        self._reads += 1
        part = partial(self._part, self._reads, schedule)
        span = steps_per_execution(self._run.reader_arguments, schedule, len(self._ranks))
        # One rank waits for the other groups, and the others of its own group for that one.
        before = self._begin if self._shared is not None and self._rank == 0 else None
        return read_in_turn(part, start, stop, span, schedule, self._rank, before)

    def held(self) -> float:
        """Return the seconds so far in which this rank has waited for other groups; any thread may call it."""
        seconds, since = self._held
        return seconds if since is None else seconds + time.perf_counter() - since

    def _begin(self, step: int, closed: Callable[[], bool]) -> None:
        """Wait until the other groups have begun the step before."""
        if self._shared is None:
            return
        seconds, begin = self._held[0], time.perf_counter()
        self._held = (seconds, begin)
        try:
            if self._shared.begin(step, lambda: closed() or is_asked_to_pause()):
                return
        finally:
            self._held = (seconds + time.perf_counter() - begin, None)
        self._shared = None
        self._say(
            "the actor by which the students' workers share micro-batches is lost: each student's workers read for "
            "themselves from here, and teachers compute again what they no longer have"
        )

    def _part(self, read: int, schedule: MicroBatchSchedule, first: int, last: int) -> CloseableIterator[Batch]:
        """Return the batches of steps ``first`` to ``last``; the execution is opened with the first of them."""
        opened: list[CloseableIterator[Batch]] = []
        closed = threading.Event()
        key = (read, schedule.version_at(first), first)

        def batches() -> Generator[Batch, None, None]:
            """Yield the batches, and note at the end that this rank has read its part."""
            try:
                iterator = self._iterator(key, schedule, last, closed)
                if iterator is not None:
                    opened.append(read_stream(iterator, partial(self._rest, schedule, first, last), self._say))
                    yield from opened[0]
            finally:
                for each in opened:
                    each.close()
                with contextlib.suppress(RuntimeError):  # the first rank of the node has ended, and its store with it
                    self._store.add(_done(key), 1)

        def wake() -> None:
            """Let a rank that waits for the execution, or for a batch, end."""
            closed.set()
            for each in opened:
                each.close()

        return CloseableIterator(batches(), wake)

    def _iterator(
        self, key: _Key, schedule: MicroBatchSchedule, last: int, closed: threading.Event
    ) -> DataIterator | None:
        """Return this rank's iterator over an execution; None if the stream is closed before it is there."""
        if self._rank == self._ranks[0]:
            self._forget(key[0])
            self._open[key] = self._execute(schedule, self._ranks, key[-1], last)
            self._store.set(str(key), pickle.dumps(self._open[key]))
            return self._open[key][0]
        while not self._store.check([str(key)]):
            if closed.wait(_LOOK_S):
                return None
        iterators: list[DataIterator] = pickle.loads(self._store.get(str(key)))
        return iterators[self._ranks.index(self._rank)]

    def _forget(self, read: int) -> None:
        """Let executions end that all ranks of the node have read, or closed before the last call of :meth:`read`."""
        for key in list(self._open):
            if key[0] < read - 1 or self._store.add(_done(key), 0) == len(self._ranks):
                del self._open[key]
                self._store.delete_key(str(key))

    def _rest(self, schedule: MicroBatchSchedule, first: int, last: int, count: int) -> DataIterator | None:
        """Open an execution for this rank alone, without its first ``count`` micro-batches; None if none is left."""
        return next(iter(self._execute(schedule, [self._rank], first, last, count)), None)

    def _execute(
        self, schedule: MicroBatchSchedule, ranks: list[int], first: int, last: int, skip: int = 0
    ) -> list[DataIterator]:
        """Open an execution of steps ``first`` to ``last``, without the first ``skip`` micro-batches of each rank."""
        own = [[schedule.of_rank(step, rank) for step in range(first, last)] for rank in ranks]
        if skip:
            own = [_without(by_step, skip) for by_step in own]
        if not own[0]:
            return []
        return open_stream(
            self._run.reader_arguments,
            own,
            tasks=self._run.spec.dataset.workers * len(ranks),
            cpus_per_task=self._run.spec.cluster.cpus_per_decode,
            shared=self._shared,
        )

    def _open_store(self) -> TCPStore:
        """Return the store of this node; its server is a thread of the first rank's process."""
        listener = None
        if self._rank == self._ranks[0]:
            listener = socket.create_server(("127.0.0.1", 0))  # not reachable from other machines
        ports = collectives.gather_objects(None if listener is None else listener.getsockname()[1])
        port = ports[self._ranks[0]]
        if listener is None:
            return TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
        return TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())


def _without(by_step: list[list[int]], count: int) -> list[list[int]]:
    """Return the micro-batches of each step without the first ``count`` of all."""
    left = []
    for of_step in by_step:
        if own := of_step[count:]:
            left.append(own)
        count = max(0, count - len(of_step))
    return left


def _done(key: _Key) -> str:
    """Return the name in the store of the number of ranks that have ended an execution."""
    return f"{key} done"
