"""Micro-batches read by Ray Data: the stream of a distributed run.

A block holds a few consecutive micro-batches of one rank, in one row, which Ray Data never cuts; a task reads a span of
neighbouring blocks and yields them one by one. ``preserve_order`` deals block i to rank i mod world size whatever the
speed of each, so the order that was planned is the order that arrives. A dataset covers a bounded number of steps.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from itertools import islice
from pathlib import Path

import pyarrow as pa
import ray
import ray.data

from radioplat.common.ray_internals import task_attempt_number
from radioplat.data.batch import Batch
from radioplat.data.loading.arrow_batch import batch_to_table, pack, table_to_batch, unpack
from radioplat.data.loading.closeable import CloseableIterator, end_thread
from radioplat.data.loading.padding import padding_batch
from radioplat.data.loading.reader import MicroBatchReader
from radioplat.data.loading.run_data import dataset_from_json, open_reader
from radioplat.data.order.micro_batch_schedule import PADDING, MicroBatchSchedule
from radioplat.data.ray_blocks import end_execution, read_blocks
from radioplat.data.storage.outage import before_each_try, note_waits_in
from radioplat.data.views.render import ViewSpec
from radioplat.errors import wrapped_error

MAX_MICRO_BATCHES = 4096  # of one dataset
# Of a block: enough that moving it is little beside decoding it, and few enough that the first comes soon.
PACK, PACK_BYTES = 8, 16 * 2**20
# Of a task: enough samples that starting it is little beside its work, and no more than it may hold for a slow reader.
SPAN, SPAN_BYTES = 512, 96 * 2**20


class _ReadSpan:
    """The body of a Ray Data task."""

    def __init__(self, directory: str, dataset_json: str, views: tuple[tuple, ...]) -> None:
        self._arguments = (directory, dataset_json, views)

    def __call__(self, spans: pa.Table) -> Iterator[pa.Table]:
        note_waits_in(Path(self._arguments[0]))
        reader = open_reader(*self._arguments)
        patience = reader.read_timeout_s
        if task_attempt_number():
            # A process of this task is gone, perhaps for a read that hung: if it hangs again, the sample is given up.
            reader, patience = reader.careful(), None
        for blocks in spans["blocks"].to_pylist():
            for micro_batches in json.loads(blocks):
                yield pack([batch_to_table(self._read(reader, micro_batch, patience)) for micro_batch in micro_batches])

    def _read(self, reader: MicroBatchReader, micro_batch: int, patience: float | None) -> Batch:
        if micro_batch == PADDING:
            return padding_batch(reader.views, reader.batch_size)
        with _ended_after(patience):
            return reader.read(micro_batch)


@contextlib.contextmanager
def _ended_after(seconds: float | None) -> Iterator[None]:
    """End this process if the block takes longer: Ray then runs the task again in another one.

    A read that hangs inside the kernel can be neither interrupted nor left by the thread that it holds. Where it hung
    stands in the process's log.
    """
    if seconds is None:
        yield
        return

    def wind_up() -> None:
        """Begin anew: a read that waits for storage does not hang."""
        faulthandler.dump_traceback_later(seconds, exit=True, file=2)

    wind_up()
    try:
        with before_each_try(wind_up):
            yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def open_stream(
    reader: tuple[str, str, tuple[tuple, ...]],
    schedule: MicroBatchSchedule,
    start: int,
    stop: int,
    *,
    tasks: int,
    cpus_per_task: float,
    environment: dict | None = None,
) -> list[ray.data.DataIterator]:
    """Return one iterator per rank over the micro-batches of steps ``start`` to ``stop``.

    Made by one process and sent to the others.

    Args:
        reader: the arguments of :func:`radioplat.data.loading.run_data.open_reader`.
        tasks: decode tasks that run at once.
        cpus_per_task: logical CPUs of each.
        environment: runtime environment of each, over this process's own.
    """
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    context.target_max_block_size = 1  # a block ends after each row; a row is never cut
    size = dataset_from_json(reader[1]).batch_size
    micro_batch_bytes = size * sum(3 * ViewSpec(*view).size ** 2 for view in reader[2])
    blocks = deal(schedule, start, stop, max(1, min(PACK, PACK_BYTES // micro_batch_bytes)))
    block_bytes, samples = micro_batch_bytes * len(blocks[0]), size * len(blocks[0])
    span = max(1, min(SPAN // samples, SPAN_BYTES // block_bytes, len(blocks) // (2 * tasks)))
    # As text: of nested lists Ray makes tensors. Not from_arrow, whose task waits for a whole CPU to be free.
    spans = [{"blocks": json.dumps(blocks[i : i + span])} for i in range(0, len(blocks), span)]
    dataset = ray.data.from_items(spans, override_num_blocks=len(spans)).map_batches(
        _ReadSpan(*reader),
        batch_size=None,
        batch_format="pyarrow",
        zero_copy_batch=True,
        num_cpus=cpus_per_task,
        compute=ray.data.TaskPoolStrategy(size=tasks),
        **({"runtime_env": environment} if environment else {}),
    )
    return dataset.streaming_split(schedule.world_size)


def deal(schedule: MicroBatchSchedule, start: int, stop: int, most: int) -> list[list[int]]:
    """Return the micro-batches of steps ``start`` to ``stop`` in blocks of at most ``most``.

    Block i contains the next micro-batches of rank i mod world size, in the order in which the rank consumes them.
    """
    ranks = range(schedule.world_size)
    own = [[n for step in range(start, stop) for n in schedule.of_rank(step, rank)] for rank in ranks]
    return [own[rank][i : i + most] for i in range(0, len(own[0]), most) for rank in ranks]


def steps_per_dataset(schedule: MicroBatchSchedule) -> int:
    """Steps that one dataset covers."""
    return max(1, MAX_MICRO_BATCHES // (schedule.per_rank * schedule.world_size))


def read_stream(iterator: ray.data.DataIterator) -> CloseableIterator[Batch]:
    """The batches of one rank, in order; arrays are views of the object store.

    Closed early, the dataset stops once every rank has closed. A thread that waits for a batch meanwhile is woken then,
    or by the batch.

    Raises:
        StorageError: a reader waited in vain for storage.
    """
    blocks = read_blocks(iterator)

    def read() -> Generator[Batch, None, None]:
        with contextlib.closing(blocks):
            while True:
                try:
                    block = next(blocks, None)
                except Exception as error:
                    ours = wrapped_error(error)
                    raise error if ours is None else ours from None
                if block is None:
                    return
                for i in range(block.num_rows):
                    yield from map(table_to_batch, unpack(block.slice(i, 1)))

    return CloseableIterator(read(), wake=lambda: end_execution(iterator))


def read_in_turn(
    part: Callable[[int, int], CloseableIterator[Batch]], start: int, stop: int, span: int, per_step: int
) -> CloseableIterator[Batch]:
    """The batches of one rank in steps ``start`` to ``stop``, from one dataset after another.

    A dataset takes seconds to give its first block: each is begun when three quarters of the one before are read.

    Args:
        part: opens the dataset of the steps from its first argument to its second.
        span: steps of a dataset.
        per_step: batches of a step.
    """
    parts: list[_BegunPart] = []  # that are open: the one that is read, and the next

    def begin(first: int) -> None:
        parts.append(_BegunPart(part(first, min(first + span, stop))))

    def read() -> Generator[Batch, None, None]:
        try:
            begin(start)
            for first in range(start, stop, span):
                if not parts:  # closed by another thread before the next was begun
                    return
                last = min(first + span, stop)
                due = (last - first) * per_step * 3 // 4
                for number, batch in enumerate(parts[0]):
                    if number == due and last < stop:
                        begin(last)
                    yield batch
                parts.pop(0).close()
        finally:
            for each in parts:
                each.close()

    def wake() -> None:
        for each in list(parts):
            each.batches.close()

    return CloseableIterator(read(), wake)


class _BegunPart:
    """``batches``, whose first a thread fetches from now on."""

    def __init__(self, batches: CloseableIterator[Batch]) -> None:
        self.batches = batches
        self._first: Future[list[Batch]] = Future()
        self._thread = threading.Thread(target=self._fetch, name="next dataset", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Batch]:
        """All of them, the first from the thread."""
        yield from self._first.result()
        yield from self.batches

    def close(self) -> None:
        """No more batches; the thread is waited for."""
        end_thread(self._thread, wake=self.batches.close)
        self.batches.close()

    def _fetch(self) -> None:
        """Wait for the first; what goes wrong here is raised where it is asked for."""
        try:
            self._first.set_result(list(islice(self.batches, 1)))
        except BaseException as error:
            self._first.set_exception(error)
