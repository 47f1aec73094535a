"""How a stream ends on a real Ray: at its last batch, in the middle, and while a read is late; nothing stays behind."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from radioplat.data.loading.ray_stream import open_stream, read_in_turn, read_stream
from radioplat.data.order.micro_batch_schedule import MicroBatchSchedule
from radioplat.training.feed.feeder import Feeder

pytestmark = [pytest.mark.ray, pytest.mark.timeout(180)]
BATCH_SIZE, STEPS = 4, 8
BATCHES = STEPS * 4


@pytest.fixture(scope="session")
def prepare(write_run_data):
    """prepare(folder) -> arguments of the reader, the ids of all batches, and the shards in the order of first use."""

    def make(folder: Path):
        arguments, data = write_run_data(folder, read_timeout_s=60)
        ids = data.order.slice(0, BATCHES * BATCH_SIZE).sample_id
        paths = [data.index.shard_paths[s] for s in dict.fromkeys(data.index.shard[ids].tolist())]
        return arguments, ids.tolist(), paths

    return make


@pytest.fixture(scope="module")
def prepared(tmp_path_factory, prepare):
    """What ``prepare`` gives, for all tests of this file."""
    return prepare(tmp_path_factory.mktemp("stream"))


def start(arguments, world: int = 1, first: int = 0, last: int = STEPS):
    """One reader a rank; four micro-batches a step."""
    of_rank = MicroBatchSchedule(4, world).of_rank
    wanted = [[of_rank(step, rank) for step in range(first, last)] for rank in range(world)]
    iterators = open_stream(arguments, wanted, tasks=2, cpus_per_task=1)
    return [read_stream(iterator) for iterator in iterators]


def read(batches, count: int) -> list[int]:
    return [i for _, batch in zip(range(count), batches, strict=False) for i in batch.sample_id.tolist()]


def processes(*names: bytes) -> list[int]:
    """Ray's processes on this machine whose title holds one of ``names``."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            title = (process / "cmdline").read_bytes()
            if title.startswith(b"ray::") and any(name in title for name in names):
                found.append(int(process.name))
    return found


def start_and_end(arguments, ids: list[int], times: int, draw: random.Random) -> None:
    """Start the stream ``times`` times, end it at a random batch, and see that no thread and no process stays."""
    read(start(arguments)[0], BATCHES)  # what Ray keeps for good is there from now on
    threads = set(threading.enumerate())
    for number in range(times):
        stop = draw.choice([0, 1, BATCHES - 1, BATCHES, BATCHES + 1, draw.randint(2, BATCHES - 2)])
        (batches,) = start(arguments)
        assert read(batches, stop) == ids[: stop * BATCH_SIZE], (number, stop)
        batches.close()
        assert set(threading.enumerate()) <= threads, (number, stop)
        assert list(batches) == []
    del batches
    gc.collect()  # Ray keeps handles in cycles
    deadline = time.monotonic() + 30
    while (left := processes(b"_ReadSpan", b"SplitCoordinator")) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert left == []


def test_no_thread_and_no_process_outlives_the_stream(ray_cluster, prepared):
    arguments, ids, _ = prepared
    start_and_end(arguments, ids, 1, random.Random(0))


@pytest.mark.proof
@pytest.mark.timeout(1200)
def test_two_hundred_starts_and_ends(ray_cluster, prepared):
    arguments, ids, _ = prepared
    start_and_end(arguments, ids, 200, random.Random(1))


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Beside ``count`` processes that only compute, as nice as Ray's workers, which would starve otherwise."""
    command = ["nice", "-n", "15", sys.executable, "-c", "while True: pass"]
    loops = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


@pytest.mark.proof
@pytest.mark.timeout(1200)
def test_starts_and_ends_beside_busy_processes(ray_cluster, prepared):
    arguments, ids, _ = prepared
    with busy(os.cpu_count() or 1):
        start_and_end(arguments, ids, 5, random.Random(2))


def test_a_feeder_that_waits_for_a_late_read_is_ended(ray_cluster, tmp_path, prepare, slow_storage):
    arguments, ids, paths = prepare(tmp_path)  # of its own: no process has the shard open
    slow_storage.hold(paths[-1])
    feeder = Feeder(start(arguments)[0], {}, [], depth=BATCHES)
    found = [next(iter(feeder))[0]]
    slow_storage.wait_until_asked()
    time.sleep(1)  # the feeder has taken what there was, and waits
    begin = time.monotonic()
    feeder.close()
    assert "feeder" not in {thread.name for thread in threading.enumerate()}
    assert time.monotonic() - begin < 8
    assert found[0].sample_id.tolist() == ids[:BATCH_SIZE]


@pytest.mark.proof
def test_the_thread_of_the_next_execution_is_ended(ray_cluster, prepared):
    arguments, ids, _ = prepared

    def part(first: int, last: int):
        return start(arguments, 1, first, last)[0]

    batches = read_in_turn(part, 0, STEPS, STEPS // 2, MicroBatchSchedule(4, 1), 0)
    assert read(batches, 13) == ids[: 13 * BATCH_SIZE]  # the next was begun with the last of these
    batches.close()
    assert "next execution" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.proof
def test_a_rank_that_ends_early_takes_nothing_from_the_other(ray_cluster, prepared):
    arguments, ids, _ = prepared
    one, other = start(arguments, world=2)
    mine: list[int] = []
    reading = threading.Thread(target=lambda: mine.extend(read(one, 2)))
    reading.start()
    found = read(other, 1)
    reading.join()
    one.close()
    found += read(other, BATCHES)
    micro_batches = [n for step in range(STEPS) for n in MicroBatchSchedule(4, 2).of_rank(step, 1)]
    assert found == [i for n in micro_batches for i in ids[n * BATCH_SIZE : (n + 1) * BATCH_SIZE]]


CYCLE = """
import json, sys
import ray
from radioplat.data.loading.ray_stream import open_stream, read_stream

(folder, dataset, views), count = json.loads(sys.argv[1])
ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
arguments = (folder, dataset, tuple(map(tuple, views)))
(iterator,) = open_stream(arguments, [[range(32)]], tasks=2, cpus_per_task=1)
batches = read_stream(iterator)
for _ in range(count):
    next(batches)
print("reads", flush=True)
sys.stdin.readline()
if sys.argv[2] == "closed first":
    batches.close()
    ray.shutdown()
else:
    ray.shutdown()
    batches.close()
assert not ray.is_initialized()
print("ended", flush=True)
sys.stdin.readline()
"""


@pytest.mark.proof
@pytest.mark.timeout(600)
@pytest.mark.parametrize("order", ["closed first", "shut down first"])
def test_the_process_lives_on_where_nobody_answers_the_stream(tmp_path, prepare, slow_storage, order):
    """A read is late and the coordinator is stopped, so that whoever has asked it waits while Ray is shut down."""
    arguments, ids, paths = prepare(tmp_path)
    for _ in range(3):
        slow_storage.hold(paths[-1])
        before = processes(b"SplitCoordinator")
        child = subprocess.Popen(
            [sys.executable, "-c", CYCLE, json.dumps([arguments, 24]), order],  # the late read is in the fourth block
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert child.stdout.readline() == "reads\n"
        slow_storage.wait_until_asked()
        coordinators = set(processes(b"SplitCoordinator")) - set(before)
        for process in coordinators:
            os.kill(process, signal.SIGSTOP)
        try:
            child.stdin.write("\n")
            child.stdin.flush()
            said = child.stdout.readline()
            time.sleep(3)  # a thread that waits in Ray asks it again each second
            output, _ = child.communicate("\n", timeout=60)
        finally:
            slow_storage.release()
            for process in coordinators:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        assert coordinators and (child.returncode, said, output) == (0, "ended\n", "")


MANY = """
import json, sys
import ray
from radioplat.data.loading.ray_stream import open_stream, read_stream

folder, dataset, views = json.loads(sys.argv[1])
ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
arguments = (folder, dataset, tuple(map(tuple, views)))
opened = [open_stream(arguments, [[range(32)]], tasks=1, cpus_per_task=0.1) for _ in range(8)]
streams = [read_stream(iterator) for (iterator,) in opened]
for batches in streams:
    next(batches)
for batches in streams:
    next(batches)
    batches.close()
ray.shutdown()
print("ended", flush=True)
"""


@pytest.mark.proof
@pytest.mark.timeout(600)
def test_a_process_that_read_many_streams_outlives_ray(prepared):
    """Whatever a stream leaves behind may ask Ray at any moment of its shutdown: of eight, one or another will."""
    for _ in range(4):
        command = [sys.executable, "-c", MANY, json.dumps(prepared[0])]
        child = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, timeout=120)
        assert (child.returncode, child.stdout) == (0, "ended\n")
