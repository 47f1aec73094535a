"""Read micro-batches with Ray Data, for distributed runs.

A block is one row with a few consecutive micro-batches of one rank; Ray Data never splits a row. A task reads several
consecutive blocks and yields them one by one. With ``preserve_order``, rank r receives the blocks i with i mod world
size = r in order, however fast each task is. A dataset covers a limited number of steps.
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
# Micro-batches and bytes per block: large enough for a cheap transfer, small enough for an early first block.
PACK, PACK_BYTES = 8, 16 * 2**20
# Samples and bytes per task: large enough that its start is cheap, small enough to be buffered for a slow reader.
SPAN, SPAN_BYTES = 512, 96 * 2**20


class _ReadSpan:
    """The body of a Ray Data task."""

    def __init__(self, directory: str, dataset_json: str, views: tuple[tuple, ...]) -> None:
        self._arguments = (directory, dataset_json, views)

    def __call__(self, spans: pa.Table) -> Iterator[pa.Table]:
        note_waits_in(Path(self._arguments[0]))
        reader = open_reader(*self._arguments)
        timeout_s = reader.read_timeout_s
        if task_attempt_number():
            # An earlier process of this task ended, maybe because a read hung: if it hangs again, give up the sample.
            reader, timeout_s = reader.careful(), None
        for blocks in spans["blocks"].to_pylist():
            for micro_batches in json.loads(blocks):
                yield pack(
                    [batch_to_table(self._read(reader, micro_batch, timeout_s)) for micro_batch in micro_batches]
                )

    def _read(self, reader: MicroBatchReader, micro_batch: int, timeout_s: float | None) -> Batch:
        if micro_batch == PADDING:
            return padding_batch(reader.views, reader.batch_size)
        with _exit_after(timeout_s):
            return reader.read(micro_batch)


@contextlib.contextmanager
def _exit_after(seconds: float | None) -> Iterator[None]:
    """Exit this process if the block takes longer than ``seconds``; Ray then retries the task in another process.

    A read that hangs inside the kernel cannot be interrupted. The traceback is written to the process's log.
    """
    if seconds is None:
        yield
        return

    def restart_timer() -> None:
        """Restart the time limit: a read that waits for storage does not hang."""
        faulthandler.dump_traceback_later(seconds, exit=True, file=2)

    restart_timer()
    try:
        with before_each_try(restart_timer):
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
        tasks: number of concurrent decode tasks.
        cpus_per_task: logical CPUs of each.
        environment: runtime environment of the tasks; default: this process's.
    """
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    context.target_max_block_size = 1  # bytes: a block ends after each row; a row is never split
    size = dataset_from_json(reader[1]).batch_size
    micro_batch_bytes = size * sum(3 * ViewSpec(*view).size ** 2 for view in reader[2])
    blocks = deal(schedule, start, stop, max(1, min(PACK, PACK_BYTES // micro_batch_bytes)))
    block_bytes, samples = micro_batch_bytes * len(blocks[0]), size * len(blocks[0])
    span = max(1, min(SPAN // samples, SPAN_BYTES // block_bytes, len(blocks) // (2 * tasks)))
    # As text, because Ray converts nested lists to tensors. Not from_arrow, whose task needs a whole CPU.
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
    """Return the number of steps that one dataset covers."""
    return max(1, MAX_MICRO_BATCHES // (schedule.per_rank * schedule.world_size))


def read_stream(iterator: ray.data.DataIterator) -> CloseableIterator[Batch]:
    """Return the batches of one rank, in order; their arrays are views of the object store.

    The dataset stops once every rank has closed its iterator; a thread that waits for a batch is then woken.

    Raises:
        StorageError: storage failed for longer than the time limit.
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
    """Return the batches of one rank in steps ``start`` to ``stop``, from consecutive datasets.

    A dataset takes seconds to produce its first block, so each is started when three quarters of the previous one have
    been read.

    Args:
        part: opens the dataset of the steps from its first to its second argument.
        span: steps per dataset.
        per_step: batches per step on this rank.
    """
    parts: list[_StartedPart] = []  # the open ones: the current and maybe the next

    def begin(first: int) -> None:
        parts.append(_StartedPart(part(first, min(first + span, stop))))

    def read() -> Generator[Batch, None, None]:
        try:
            begin(start)
            for first in range(start, stop, span):
                if not parts:  # closed by another thread before the next was started
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


class _StartedPart:
    """Batches of a dataset; a thread fetches the first one in advance."""

    def __init__(self, batches: CloseableIterator[Batch]) -> None:
        self.batches = batches
        self._first: Future[list[Batch]] = Future()
        self._thread = threading.Thread(target=self._fetch, name="next dataset", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Batch]:
        """Yield all batches."""
        yield from self._first.result()
        yield from self.batches

    def close(self) -> None:
        """Close the dataset and wait for the thread."""
        end_thread(self._thread, wake=self.batches.close)
        self.batches.close()

    def _fetch(self) -> None:
        """Fetch the first batch; an error is raised in :meth:`__iter__`."""
        try:
            self._first.set_result(list(islice(self.batches, 1)))
        except BaseException as error:
            self._first.set_exception(error)
