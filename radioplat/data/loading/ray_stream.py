"""Read micro-batches with Ray Data, for distributed runs.

A block is one row with a few consecutive micro-batches of one rank; Ray Data never splits a row. A task reads several
consecutive blocks and yields them one by one. With ``preserve_order``, reader r of n receives the blocks i with i mod
n = r in order, however fast each task is. One execution serves the ranks of one node: the order is a pure function, so
executions need not know of each other. An execution covers a limited number of steps, because Ray keeps 3 KB for each
of its blocks.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import logging
import math
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray
import ray.data

from radioplat.common.ray_internals import task_attempt_number
from radioplat.data.batch import Batch
from radioplat.data.loading.arrow_batch import batch_to_table, pack, table_to_batch, unpack
from radioplat.data.loading.closeable import CloseableIterator, end_thread
from radioplat.data.loading.execution_pace import ExecutionPace
from radioplat.data.loading.padding import padding_batch
from radioplat.data.loading.reader import MicroBatchReader
from radioplat.data.loading.run_data import dataset_from_json, open_reader
from radioplat.data.loading.shared_reads import SharedReads
from radioplat.data.order.micro_batch_schedule import PADDING, MicroBatchSchedule
from radioplat.data.ray_blocks import end_execution, read_blocks
from radioplat.data.storage.outage import note_waits_in
from radioplat.data.storage.request_rate import after_each_wait
from radioplat.data.views.render import ViewSpec
from radioplat.errors import wrapped_error

logger = logging.getLogger(__name__)

# Steps of one execution: so many micro-batches (100 MB in its coordinator), but at least so many steps, unless its
# tasks would be too many or too large.
MICRO_BATCHES, LEAST_STEPS = 32768, 2000
# Micro-batches and bytes per block: large enough for a cheap transfer, small enough for an early first block.
PACK, PACK_BYTES = 8, 16 * 2**20
# Samples and bytes per task: large enough that its start is cheap, small enough to be buffered for a slow reader.
SPAN, SPAN_BYTES = 512, 96 * 2**20
TASKS = 4096  # most tasks of an execution; listing one takes the opening process about half a millisecond
TASK_BYTES = 256 * 2**20  # most bytes of a task, where this many tasks would otherwise not do
DEATHS = 3  # of coordinators in a row, with no batch between them, after which a reader gives up


class _ReadSpan:
    """The body of a Ray Data task."""

    def __init__(self, reader: tuple[str, str, tuple[tuple, ...]], shared: SharedReads | None) -> None:
        self._arguments, self._shared = reader, shared

    def __call__(self, spans: pa.Table) -> Iterator[pa.Table]:
        note_waits_in(Path(self._arguments[0]))
        reader = open_reader(*self._arguments)
        timeout_s = reader.read_timeout_s
        if task_attempt_number():
            # An earlier process of this task ended, maybe because a read hung: if it hangs again, give up the sample.
            reader, timeout_s = reader.careful(), None
        for blocks in spans["blocks"].to_pylist():
            for micro_batches in json.loads(blocks):
                yield pack([self._read(reader, micro_batch, timeout_s) for micro_batch in micro_batches])

    def _read(self, reader: MicroBatchReader, micro_batch: int, timeout_s: float | None) -> pa.Table:
        if micro_batch == PADDING:
            return batch_to_table(padding_batch(reader.views, reader.batch_size))

        def read() -> pa.Table:
            """Read it here."""
            with _exit_after(timeout_s):
                return batch_to_table(reader.read(micro_batch))

        return read() if self._shared is None else self._shared.read(micro_batch, read)


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
        with after_each_wait(restart_timer):
            yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def open_stream(
    reader: tuple[str, str, tuple[tuple, ...]],
    micro_batches: Sequence[Sequence[Sequence[int]]],
    *,
    tasks: int,
    cpus_per_task: float,
    environment: dict | None = None,
    most: int = PACK,
    shared: SharedReads | None = None,
) -> list[ray.data.DataIterator]:
    """Return one iterator for each of several readers. Made by one of them and sent to the others.

    Args:
        reader: the arguments of :func:`radioplat.data.loading.run_data.open_reader`.
        micro_batches: of each reader, by step, in its order; at least one a step.
        tasks: number of concurrent decode tasks.
        cpus_per_task: logical CPUs of each.
        environment: runtime environment of the tasks; default: this process's.
        most: micro-batches in a block, if they are small.
        shared: of groups of workers that read the same micro-batches.
    """
    samples, size = _size(reader)
    blocks = deal(micro_batches, _in_block(size, most))
    each = max(1, sum(map(len, blocks)) // len(blocks))  # micro-batches of a block
    span = min(SPAN // (samples * each), SPAN_BYTES // (size * each), len(blocks) // (2 * tasks))
    span = max(1, span, -(-len(blocks) // TASKS))
    # As text, because Ray converts nested lists to tensors. Not from_arrow, whose task needs a whole CPU.
    spans = [{"blocks": json.dumps(blocks[i : i + span])} for i in range(0, len(blocks), span)]
    # Ray Data divides the CPUs of each node among all executions and rounds down: with more executions than CPUs, none
    # would get any. So it counts zero for a task, ``size`` limits their number, and Ray places them by ``num_cpus``.
    dataset = ray.data.from_items(spans, override_num_blocks=len(spans)).map_batches(
        _ReadSpan(reader, shared),
        batch_size=None,
        batch_format="pyarrow",
        zero_copy_batch=True,
        num_cpus=0,
        ray_remote_args_fn=partial(_task_options, cpus_per_task),
        compute=ray.data.TaskPoolStrategy(size=tasks),
        **({"runtime_env": environment} if environment else {}),
    )
    context = dataset.context  # of this dataset alone
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    context.target_max_block_size = 1  # bytes: a block ends after each row; a row is never split
    context.custom_execution_callback_classes = [ExecutionPace]
    return dataset.streaming_split(len(micro_batches))


def _task_options(cpus: float) -> dict[str, Any]:
    """Return what Ray places a task by."""
    return {"num_cpus": cpus}


def deal(micro_batches: Sequence[Sequence[Sequence[int]]], most: int) -> list[list[int]]:
    """Return the micro-batches of n readers in blocks of about ``most``.

    Block i contains the next micro-batches of reader i mod n, in its order: of some steps, or a part of a step. The
    blocks of all readers are of the same steps, so that a reader with more of each step is not held up by the others.
    """
    counts = [len(of_step) for own in micro_batches for of_step in own]
    mean, least = sum(counts) / len(counts), min(counts)
    parts = min(least, math.ceil(mean / most))  # of a step
    steps = max(1, int(most / mean)) if parts == 1 else 1  # in a block
    blocks = []
    for first in range(0, len(micro_batches[0]), steps):
        of_steps = [[n for of_step in own[first : first + steps] for n in of_step] for own in micro_batches]
        for part in range(parts):
            blocks += [own[len(own) * part // parts : len(own) * (part + 1) // parts] for own in of_steps]
    return blocks


def steps_per_execution(
    reader: tuple[str, str, tuple[tuple, ...]], schedule: MicroBatchSchedule, ranks: int, most: int = PACK
) -> int:
    """Return the number of steps that one execution of :func:`open_stream` for so many ranks should cover."""
    size, a_step = _size(reader)[1], schedule.per_rank * ranks
    in_block = _in_block(size, most)
    room = TASKS * max(1, TASK_BYTES // (size * in_block)) * in_block
    return max(1, min(max(LEAST_STEPS, MICRO_BATCHES // a_step), room // a_step))


def _size(reader: tuple[str, str, tuple[tuple, ...]]) -> tuple[int, int]:
    """Return the samples of a micro-batch, and its bytes."""
    samples = dataset_from_json(reader[1]).batch_size
    return samples, samples * sum(3 * ViewSpec(*view).size ** 2 for view in reader[2])


def _in_block(size: int, most: int) -> int:
    """Return the number of micro-batches of so many bytes in a block."""
    return max(1, min(most, PACK_BYTES // size))


def read_stream(
    iterator: ray.data.DataIterator,
    open_rest: Callable[[int], ray.data.DataIterator | None] | None = None,
    say: Callable[[str], None] = logger.warning,
) -> CloseableIterator[Batch]:
    """Return the batches of one reader, in order; their arrays are views of the object store.

    The execution stops once every reader has closed its iterator; a thread that waits for a batch is then woken.

    Args:
        open_rest: returns another iterator over the micro-batches after the first n, None if there are none. It
            replaces an execution whose coordinator died.
        say: gets a line for each such death.

    Raises:
        StorageError: storage failed for longer than the time limit.
        ray.exceptions.RayError: the coordinator died, and ``open_rest`` is None or several died in a row.
    """
    current = [iterator]

    def read() -> Generator[Batch, None, None]:
        count = deaths = 0
        while True:
            blocks = read_blocks(current[0])
            try:
                with contextlib.closing(blocks):
                    for block in blocks:
                        for i in range(block.num_rows):
                            for table in unpack(block.slice(i, 1)):
                                count, deaths = count + 1, 0
                                yield table_to_batch(table)
                return
            except (ray.exceptions.RayActorError, ray.exceptions.OwnerDiedError) as error:
                if batches.closed:
                    return
                deaths += 1
                if open_rest is None or deaths >= DEATHS:
                    raise
                say(f"the coordinator of a stream died ({type(error).__name__}); this rank continues with its own")
            except Exception as error:
                ours = wrapped_error(error)
                raise error if ours is None else ours from None
            rest = open_rest(count)
            if rest is None:
                return
            current[0] = rest

    batches = CloseableIterator(read(), wake=lambda: end_execution(current[0]))
    return batches


def read_in_turn(
    part: Callable[[int, int], CloseableIterator[Batch]],
    start: int,
    stop: int,
    span: int,
    schedule: MicroBatchSchedule,
    rank: int,
    before: Callable[[int, Callable[[], bool]], None] | None = None,
) -> CloseableIterator[Batch]:
    """Return the batches of ``rank`` in steps ``start`` to ``stop``, from consecutive executions.

    An execution takes seconds to produce its first block, so each is started, by a thread, when three quarters of the
    previous one have been read, or when the micro-batches of later steps are dealt anew.

    Args:
        part: opens the execution of the steps from its first to its second argument; must return at once.
        span: steps per execution.
        schedule: may change for steps that no rank has read; an execution that was opened before is read up to there.
        before: called before the first batch of each step, with the step and a function that returns True once the
            iterator is closed; it may wait.
    """
    parts: list[_StartedPart] = []  # the open ones: the current and maybe the next

    def last_of(first: int) -> int:
        """Return the step at which the execution that begins at ``first`` has to end."""
        change = schedule.next_change(first)
        return min(first + span, stop, stop if change is None else change)

    def begin(first: int) -> None:
        """Start the execution that begins at ``first``, in place of one that is no longer wanted."""
        wanted = (first, schedule.version_at(first))
        while parts and parts[-1].begin >= (first, 0) and parts[-1].begin != wanted:
            parts.pop().close()
        if first < stop and not (parts and parts[-1].begin == wanted):
            parts.append(_StartedPart(part(first, last_of(first)), wanted))

    def read() -> Generator[Batch, None, None]:
        """Yield the batches, step by step."""
        try:
            begin(start)
            step = start
            while step < stop:
                if not parts:  # closed by another thread before the next was started
                    return
                first, opened = step, last_of(step)
                batches = iter(parts[0])
                while step < last_of(first):
                    if before is not None:
                        before(step, lambda: batches_in_turn.closed)
                    for _ in schedule.of_rank(step, rank):
                        if last_of(first) < opened or step - first >= (opened - first) * 3 // 4:
                            begin(last_of(first))
                        try:
                            yield next(batches)
                        except StopIteration:
                            return
                    step += 1
                parts.pop(0).close()
                begin(step)
        finally:
            for each in parts:
                each.close()

    def wake() -> None:
        """End the wait of a reader."""
        for each in list(parts):
            each.batches.close()

    batches_in_turn = CloseableIterator(read(), wake)
    return batches_in_turn


class _StartedPart:
    """Batches of an execution that begins at a step, in a dealing; a thread fetches the first one in advance."""

    def __init__(self, batches: CloseableIterator[Batch], begin: tuple[int, int]) -> None:
        self.batches, self.begin = batches, begin
        self._first: Future[list[Batch]] = Future()
        self._thread = threading.Thread(target=self._fetch, name="next execution", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Batch]:
        """Yield all batches."""
        yield from self._first.result()
        yield from self.batches

    def close(self) -> None:
        """Close the execution and wait for the thread."""
        end_thread(self._thread, wake=self.batches.close)
        self.batches.close()

    def _fetch(self) -> None:
        """Fetch the first batch; an error is raised in :meth:`__iter__`."""
        try:
            self._first.set_result(list(islice(self.batches, 1)))
        except BaseException as error:
            self._first.set_exception(error)
