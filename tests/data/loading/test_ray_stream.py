"""The stream on a real Ray: the order arrives, whoever is slow, hangs or dies."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import ray
from hypothesis import given
from hypothesis import strategies as st

from radioplat.data.loading.closeable import CloseableIterator
from radioplat.data.loading.ray_stream import deal, open_stream, read_in_turn, read_stream
from radioplat.data.loading.run_data import RunData, open_reader
from radioplat.data.order.micro_batch_schedule import MicroBatchSchedule
from radioplat.data.storage.outage import read_waits
from radioplat.errors import StorageError
from radioplat.training.feed.feeder import Feeder

pytestmark = [pytest.mark.ray, pytest.mark.timeout(180)]
BATCH_SIZE, STEPS = 4, 8
TIMEOUT = 3.0


@pytest.fixture
def run_data(tmp_path, write_run_data):
    """run_data(timeout, **fields of the dataset) -> arguments of the reader, and the data."""
    return lambda timeout=TIMEOUT, **fields: write_run_data(tmp_path, read_timeout_s=timeout, **fields)


def first_use(data: RunData, lowest: int) -> tuple[str, int]:
    """A shard that no micro-batch before ``lowest`` reads: its path, and the first micro-batch that does."""
    ids = data.order.slice(0, STEPS * 4 * BATCH_SIZE).sample_id
    micro_batch = {
        s: int(np.flatnonzero(data.index.shard[ids] == s)[0]) // BATCH_SIZE for s in set(data.index.shard[ids].tolist())
    }
    shard = min((s for s in micro_batch if micro_batch[s] >= lowest), key=micro_batch.__getitem__)
    return data.index.shard_paths[shard], micro_batch[shard]


def stream(arguments, environment: dict | None = None):
    """The batches of every step, four micro-batches each."""
    (iterator,) = open_stream(
        arguments, MicroBatchSchedule(4, 1), 0, STEPS, tasks=2, cpus_per_task=1, environment=environment
    )
    return read_stream(iterator)


def ids_of(batches) -> list[int]:
    return [i for b in batches for i in b.sample_id.tolist()]


@given(st.integers(1, 9), st.integers(1, 5), st.integers(0, 6), st.integers(1, 6), st.integers(1, 9))
def test_round_robin_gives_each_rank_its_micro_batches_in_order(micro_batches, world, start, steps, most):
    schedule = MicroBatchSchedule(micro_batches, world)
    blocks = deal(schedule, start, start + steps, most)
    for rank in range(world):
        own = [micro_batch for block in blocks[rank::world] for micro_batch in block]
        assert own == [
            micro_batch for step in range(start, start + steps) for micro_batch in schedule.of_rank(step, rank)
        ]
    assert len(blocks) % world == 0 and all(1 <= len(block) <= most for block in blocks)


@pytest.mark.proof
def test_a_read_that_is_late_stops_no_step_within_the_prefetch(ray_cluster, run_data, slow_storage):
    arguments, data = run_data(timeout=60)
    path, micro_batch = first_use(data, lowest=16)
    slow_storage.hold(path)
    feeder = Feeder(stream(arguments), {}, [], depth=4)
    batches = iter(feeder)
    too_long = threading.Timer(40, slow_storage.release)
    too_long.start()
    found = [next(batches)[0] for _ in range(micro_batch)]  # all that come before the late one are there without it
    assert too_long.is_alive()
    too_long.cancel()
    slow_storage.release()
    found += [batch for batch, _ in batches]
    assert ids_of(found) == data.order.slice(0, STEPS * 4 * BATCH_SIZE).sample_id.tolist()
    assert [b.faults for b in found if b.faults] == []


def test_a_read_that_hangs_is_tried_again_from_another_process(ray_cluster, run_data, slow_storage):
    arguments, data = run_data()
    path, _ = first_use(data, lowest=16)
    shutil.copy2(path, path + ".copy")  # with its times
    slow_storage.hold(path)
    begin = time.monotonic()
    batches = stream(arguments)
    found = [next(batches)]
    slow_storage.wait_until_asked()  # and hangs for good; whoever opens the shard from now on finds its copy
    os.replace(path + ".copy", path)
    found += batches
    assert TIMEOUT < time.monotonic() - begin < 60
    assert ids_of(found) == data.order.slice(0, STEPS * 4 * BATCH_SIZE).sample_id.tolist()
    assert [b.faults for b in found if b.faults] == []


@pytest.mark.proof
def test_a_read_that_never_ends_is_counted_and_skipped(ray_cluster, run_data, slow_storage):
    arguments, data = run_data()
    path, _ = first_use(data, lowest=16)
    slow_storage.hold(path)
    found = list(stream(arguments))
    assert ids_of(found) == data.order.slice(0, STEPS * 4 * BATCH_SIZE).sample_id.tolist()
    dead = {i for b in found for i, w in zip(b.sample_id.tolist(), b.weight, strict=True) if w == 0}
    assert dead == set(np.flatnonzero(data.index.shard == data.index.shard_paths.index(path)).tolist())
    assert {r for b in found for r in b.faults.values()} == {f"short_read: no answer within {TIMEOUT:g} s"}


@pytest.mark.proof
@pytest.mark.parametrize("fault", ["fail", "hang"])
def test_storage_that_fails_is_waited_for_in_the_readers_processes(
    ray_cluster, run_data, failing_reads, tmp_path, fault
):
    timeout = 12.0 if fault == "fail" else TIMEOUT
    arguments, data = run_data(timeout)
    batches = stream(arguments, {"env_vars": failing_reads.environment})
    found, noted, mended = [next(batches)], {}, threading.Event()

    def mend() -> None:
        failing_reads.mend()
        mended.set()

    def look() -> None:
        while not mended.wait(0.1):
            noted.update(read_waits(tmp_path / "run"))

    getattr(failing_reads, fault)(str(tmp_path / "a"))
    threading.Thread(target=look).start()
    threading.Timer(30.0, mend).start()
    found += batches
    answer = "Input/output error" if fault == "fail" else f"no answer within {TIMEOUT:g} s"
    assert mended.is_set() and {note.answer for note in noted.values()} == {answer}
    assert fault == "hang" or len(noted) <= 2  # a process that waits goes on for longer than a read may hang
    assert ids_of(found) == data.order.slice(0, STEPS * 4 * BATCH_SIZE).sample_id.tolist()
    assert [b.faults for b in found if b.faults] == []


@pytest.mark.proof
def test_storage_that_fails_for_too_long_is_its_own_error(ray_cluster, run_data, failing_reads, tmp_path):
    arguments, _ = run_data(timeout=60, storage_timeout_s=1.0)
    failing_reads.fail(str(tmp_path / "a"))
    with pytest.raises(StorageError, match="Input/output error") as caught:
        list(stream(arguments, {"env_vars": failing_reads.environment}))
    assert type(caught.value) is StorageError and caught.value.problems[0].where == "dataset.storage_timeout_s"


def test_the_next_dataset_is_begun_before_one_ends(ray_cluster, run_data):
    arguments, data = run_data(timeout=60)
    schedule, opened, began = MicroBatchSchedule(4, 1), [], threading.Semaphore(0)

    def part(first: int, last: int):
        opened.append((first, last))
        (iterator,) = open_stream(arguments, schedule, first, last, tasks=2, cpus_per_task=1)
        batches = read_stream(iterator)

        def noted():
            for number, batch in enumerate(batches):
                if number == 0:
                    began.release()
                yield batch

        return CloseableIterator(noted(), wake=batches.close)

    batches = read_in_turn(part, 0, STEPS, STEPS // 2, schedule.per_rank)
    found = [next(batches) for _ in range(12)]
    assert opened == [(0, 4)] and began.acquire(timeout=0)
    found.append(next(batches))  # of 16
    assert began.acquire(timeout=60) and opened == [(0, 4), (4, 8)]
    found += batches
    assert ids_of(found) == data.order.slice(0, STEPS * 4 * BATCH_SIZE).sample_id.tolist()


def readers() -> list[int]:
    """Processes of this session that run a read task now."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            command = (process / "cmdline").read_bytes()
            if command.startswith(b"ray::") and b"_ReadSpan" in command:
                found.append(int(process.name))
    return found


def test_a_reader_that_is_killed_loses_no_sample(ray_cluster, run_data, slow_storage):
    arguments, data = run_data(timeout=60)
    path, _ = first_use(data, lowest=16)
    slow_storage.hold(path)
    batches = stream(arguments)
    found = [next(batches)]
    slow_storage.wait_until_asked()
    for pid in (pids := readers()):
        os.kill(pid, signal.SIGKILL)
    slow_storage.release()
    found += batches
    assert pids and ids_of(found) == data.order.slice(0, STEPS * 4 * BATCH_SIZE).sample_id.tolist()
    assert [b.faults for b in found if b.faults] == []
    alone = open_reader(*arguments)
    for batch in (found[0], found[7], found[-1]):
        assert (batch.views["32"].pixels == alone.read(batch.micro_batch).views["32"].pixels).all()


@pytest.mark.proof
def test_it_begins_where_less_than_a_cpu_is_free(ray_cluster, run_data):
    @ray.remote(num_cpus=3.5)
    class Tenant:
        def here(self) -> bool:
            return True

    arguments, data = run_data(timeout=60)
    tenant = Tenant.remote()
    assert ray.get(tenant.here.remote())
    try:
        (iterator,) = open_stream(arguments, MicroBatchSchedule(4, 1), 0, STEPS, tasks=1, cpus_per_task=0.5)
        assert ids_of(read_stream(iterator)) == data.order.slice(0, STEPS * 4 * BATCH_SIZE).sample_id.tolist()
    finally:
        ray.kill(tenant)
