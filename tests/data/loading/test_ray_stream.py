"""The stream on a real Ray: the order arrives, whoever is slow, hangs or dies."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil
import pytest
import ray
from hypothesis import given
from hypothesis import strategies as st

from radioplat.data.loading.closeable import CloseableIterator
from radioplat.data.loading.ray_stream import DEATHS, deal, open_stream, read_in_turn, read_stream, steps_per_execution
from radioplat.data.loading.run_data import RunData, dataset_to_json, open_reader
from radioplat.data.order.dealing import Costs
from radioplat.data.order.micro_batch_schedule import PADDING, MicroBatchSchedule
from radioplat.data.storage.outage import read_waits
from radioplat.errors import StorageError
from radioplat.spec.schema.dataset import DatasetConfig
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


ALL = list(range(STEPS * 4))


def stream(arguments, environment: dict | None = None):
    """The batches of every step, four micro-batches each."""
    (iterator,) = open_stream(arguments, [[ALL]], tasks=2, cpus_per_task=1, environment=environment)
    return read_stream(iterator)


def ids_of(batches) -> list[int]:
    return [i for b in batches for i in b.sample_id.tolist()]


SIZES = (64, 96, 128, 256)


def by_cost(micro_batches: int, world: int, in_slots: bool) -> MicroBatchSchedule:
    """A schedule of micro-batches of four sizes; from step 3 on rank 0 takes twice as long as the others."""

    def kinds(first: int, last: int):
        return [(SIZES[n * 7 % 5 % 4],) for n in range(first, last)]

    schedule = MicroBatchSchedule(micro_batches, world, kinds, in_slots)
    schedule.change(3, Costs(slowness=(2.0, *[1.0] * (world - 1))))
    return schedule


@given(
    st.data(),
    st.sampled_from(["even", "slots", "uneven"]),
    st.integers(1, 9),
    st.integers(1, 12),
    st.integers(0, 6),
    st.integers(1, 6),
    st.integers(1, 9),
)
def test_ranks_together_read_each_micro_batch_once(data, how, micro_batches, world, start, steps, most):
    """At any world size and dealing, however the ranks are spread over nodes, each with an execution of its own."""
    even = MicroBatchSchedule(micro_batches, world)
    schedule = even if how == "even" else by_cost(micro_batches, world, how == "slots")
    node_of = data.draw(st.lists(st.integers(0, 3), min_size=world, max_size=world))
    read: dict[int, list[int]] = {}
    for node in set(node_of):
        ranks = [rank for rank in range(world) if node_of[rank] == node]
        wanted = [[schedule.of_rank(step, rank) for step in range(start, start + steps)] for rank in ranks]
        blocks = deal(wanted, most)
        assert len(blocks) % len(ranks) == 0 and all(blocks)
        assert how == "uneven" or max(map(len, blocks)) <= most
        for place, rank in enumerate(ranks):  # as Ray Data hands the blocks out
            read[rank] = [n for block in blocks[place :: len(ranks)] for n in block]
    for step in range(start, start + steps):
        of_step = [read[rank].pop(0) for rank in range(world) for _ in schedule.of_rank(step, rank)]
        real = [n for n in of_step if n != PADDING]
        assert sorted(real) == list(range(step * micro_batches, (step + 1) * micro_batches))
        if how != "uneven":
            assert len(of_step) == world * schedule.per_rank
    assert not any(read.values())


def of_size(batch_size: int, pixels: int) -> tuple[str, str, tuple[tuple, ...]]:
    """Arguments of ``open_reader`` for micro-batches of so many images."""
    return "", dataset_to_json(DatasetConfig(batch_size=batch_size)), ((str(pixels), pixels),)


@given(st.integers(1, 4096), st.integers(1, 256), st.integers(1, 16))
def test_an_execution_covers_two_thousand_steps_at_any_world_size(micro_batches, world, ranks):
    schedule = MicroBatchSchedule(micro_batches, world)
    assert steps_per_execution(of_size(1, 16), schedule, min(ranks, world)) >= 2000


@given(st.integers(1, 4096), st.integers(1, 256), st.integers(1, 16), st.integers(1, 512), st.integers(16, 2048))
def test_executions_of_large_micro_batches_cover_fewer_steps_so_that_tasks_are_small(
    micro_batches, world, ranks, images, pixels
):
    schedule, reader = MicroBatchSchedule(micro_batches, world), of_size(images, pixels)
    steps = steps_per_execution(reader, schedule, min(ranks, world))
    bytes_of_a_step = schedule.per_rank * min(ranks, world) * images * 3 * pixels**2
    if steps > 1:
        # The mean task; half of its limit is lost where a block has more than half of it.
        assert steps * bytes_of_a_step / 4096 <= max(2**28, images * 3 * pixels**2)
    if steps < 2000:
        assert (steps + 1) * bytes_of_a_step / 4096 > 2**27


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


def test_the_next_execution_is_begun_before_one_ends(ray_cluster, run_data):
    arguments, data = run_data(timeout=60)
    opened, began = [], threading.Semaphore(0)

    def part(first: int, last: int):
        opened.append((first, last))
        (iterator,) = open_stream(arguments, [[ALL[4 * first : 4 * last]]], tasks=2, cpus_per_task=1)
        batches = read_stream(iterator)

        def noted():
            for number, batch in enumerate(batches):
                if number == 0:
                    began.release()
                yield batch

        return CloseableIterator(noted(), wake=batches.close)

    batches = read_in_turn(part, 0, STEPS, STEPS // 2, MicroBatchSchedule(4, 1), 0)
    found = [next(batches) for _ in range(12)]
    assert opened == [(0, 4)] and began.acquire(timeout=0)
    found.append(next(batches))  # of 16
    assert began.acquire(timeout=60) and opened == [(0, 4), (4, 8)]
    found += batches
    assert ids_of(found) == data.order.slice(0, STEPS * 4 * BATCH_SIZE).sample_id.tolist()


def processes(name: str) -> list[int]:
    """Ray's processes of this cluster whose title holds ``name``, such as ``_ReadSpan`` or ``SplitCoordinator``."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            title = process.cmdline()[:1]
            if title and title[0].startswith("ray::") and name in title[0]:
                found.append(process.pid)
    return found


def test_a_reader_that_is_killed_loses_no_sample(ray_cluster, run_data, slow_storage):
    arguments, data = run_data(timeout=60)
    path, _ = first_use(data, lowest=16)
    slow_storage.hold(path)
    batches = stream(arguments)
    found = [next(batches)]
    slow_storage.wait_until_asked()
    for pid in (pids := processes("_ReadSpan")):
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
        (iterator,) = open_stream(arguments, [[ALL]], tasks=1, cpus_per_task=0.5)
        assert ids_of(read_stream(iterator)) == data.order.slice(0, STEPS * 4 * BATCH_SIZE).sample_id.tolist()
    finally:
        ray.kill(tenant)


def test_a_coordinator_that_is_killed_loses_no_sample(ray_cluster, run_data, slow_storage):
    """Each of two readers goes on behind what it has got, with an execution of its own."""
    arguments, data = run_data(timeout=60)
    path, _ = first_use(data, lowest=16)
    schedule, said = MicroBatchSchedule(4, 2), []
    wanted = [[n for step in range(STEPS) for n in schedule.of_rank(step, rank)] for rank in range(2)]
    before = set(processes("SplitCoordinator"))
    slow_storage.hold(path)

    def read(rank: int):
        def rest(count: int):
            return open_stream(arguments, [[wanted[rank][count:]]], tasks=1, cpus_per_task=0.5)[0]

        return read_stream(iterators[rank], rest, said.append)

    by_step = [[schedule.of_rank(step, rank) for step in range(STEPS)] for rank in range(2)]
    iterators = open_stream(arguments, by_step, tasks=2, cpus_per_task=0.5)
    streams = [read(rank) for rank in range(2)]
    with ThreadPoolExecutor(2) as threads:  # an execution begins when all its readers have asked for a batch
        found = [[batch] for batch in threads.map(next, streams)]
        slow_storage.wait_until_asked()
        coordinators = set(processes("SplitCoordinator")) - before
        for pid in coordinators:
            os.kill(pid, signal.SIGKILL)
        slow_storage.release()
        for own, rest in zip(found, threads.map(list, streams), strict=True):
            own.extend(rest)
    assert len(coordinators) == 1 and len(said) == 2
    for own, numbers in zip(found, wanted, strict=True):
        assert [batch.micro_batch for batch in own] == numbers
        assert [b.faults for b in own if b.faults] == []
    together = [batch for pair in zip(*found, strict=True) for batch in pair]
    assert ids_of(together) == data.order.slice(0, STEPS * 4 * BATCH_SIZE).sample_id.tolist()


def test_coordinators_that_die_without_a_batch_between_them_are_an_error(ray_cluster, run_data):
    arguments, _ = run_data(timeout=60)
    opened, said = [], []

    def dying(count: int):
        (iterator,) = open_stream(arguments, [[ALL[count:]]], tasks=1, cpus_per_task=0.5)
        ray.kill(iterator._coord_actor)
        opened.append(count)
        return iterator

    batches = read_stream(dying(0), dying, said.append)
    with pytest.raises(ray.exceptions.RayActorError):
        next(batches)
    assert opened == [0] * DEATHS and len(said) == DEATHS - 1


def test_a_stream_whose_coordinator_dies_behind_its_last_batch_ends(ray_cluster, run_data):
    arguments, data = run_data(timeout=60)
    (iterator,) = open_stream(arguments, [[ALL]], tasks=2, cpus_per_task=1)
    batches = read_stream(iterator, lambda count: None if count == len(ALL) else pytest.fail("a batch is missing"))
    found = [next(batches) for _ in ALL]
    ray.kill(iterator._coord_actor)
    found += batches
    assert ids_of(found) == data.order.slice(0, STEPS * 4 * BATCH_SIZE).sample_id.tolist()


@pytest.mark.proof
def test_more_executions_than_cpus_run_all_their_tasks_and_no_more(ray_cluster, run_data, slow_storage):
    """Ray Data would give none of six executions a CPU of four, and let each run one task at a time."""
    arguments, data = run_data(timeout=60)
    for path in data.index.shard_paths:
        slow_storage.hold(path)
    streams = [read_stream(open_stream(arguments, [[ALL]], tasks=3, cpus_per_task=0.1)[0]) for _ in range(6)]
    with ThreadPoolExecutor(len(streams)) as threads:
        found = threads.map(list, streams)
        deadline = time.monotonic() + 90
        free = []
        while time.monotonic() < deadline and free[-20:].count(2.2) < 20:  # of 4, for four seconds
            free.append(round(ray.available_resources()["CPU"], 1))
            time.sleep(0.2)
        slow_storage.release()
        ids = data.order.slice(0, STEPS * 4 * BATCH_SIZE).sample_id.tolist()
        assert all(ids_of(batches) == ids for batches in found)
    assert min(free) == free[-1] == 2.2  # 6 executions of 3 tasks of 0.1 CPUs
