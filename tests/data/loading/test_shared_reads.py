"""Groups of workers on a real Ray read each micro-batch once, keep in step, and do without one another if they must."""

from __future__ import annotations

import threading
import time

import pyarrow as pa
import pytest
import ray

from radioplat.data.loading import shared_reads
from radioplat.data.loading.shared_reads import SharedReads

pytestmark = [pytest.mark.ray, pytest.mark.timeout(120)]


def table(number: int, size: int = 1000) -> pa.Table:
    return pa.table({"number": [number] * size})


def never() -> bool:
    return False


@pytest.fixture
def shared(ray_cluster):
    made = SharedReads(["a", "b", "c"], most=40_000)
    yield made
    made.end()


def test_one_reads_and_the_others_get_the_same(shared):
    reads = []

    def read(number: int) -> pa.Table:
        reads.append(number)
        time.sleep(0.2)
        return table(number)

    results: dict[tuple, pa.Table] = {}

    def group(name: str) -> None:
        for number in range(3):
            results[name, number] = shared.of(name).read(number, lambda: read(number))  # noqa: B023

    threads = [threading.Thread(target=group, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(reads) == [0, 1, 2] and shared.counts() == {"read": 3, "shared": 6}
    assert all(results[name, number].equals(table(number)) for name in "abc" for number in range(3))


def test_what_is_too_large_is_read_again(shared):
    one = shared.of("a")
    for number in range(20):  # of 8,000 bytes each
        one.read(number, lambda: table(number))  # noqa: B023
    again = []
    other = shared.of("b")
    assert other.read(0, lambda: again.append(0) or table(0)).equals(table(0)) and again == [0]
    assert other.read(19, lambda: again.append(19) or table(19)).equals(table(19)) and again == [0]


def test_no_group_is_more_than_a_step_ahead(shared):
    for name in "abc":
        shared.of(name).begin(0, never)
    shared.of("a").begin(1, never)
    shared.of("b").begin(1, never)
    ahead = threading.Thread(target=shared.of("a").begin, args=(2, never))
    ahead.start()
    ahead.join(1.0)
    assert ahead.is_alive()  # c has not begun step 1
    shared.of("c").leave()
    ahead.join(10.0)
    assert not ahead.is_alive()
    closed = threading.Event()
    waits = threading.Thread(target=shared.of("a").begin, args=(9, closed.is_set))
    waits.start()
    closed.set()
    waits.join(10.0)
    assert not waits.is_alive()


def test_a_group_whose_reader_died_reads_at_once(shared):
    assert ray.get(shared._actor.take.remote("a", 5)) is None  # its process dies here
    begin = time.monotonic()
    assert shared.of("a").read(5, lambda: table(5)).equals(table(5)) and time.monotonic() - begin < 5
    assert shared.of("b").read(5, lambda: table(0)).equals(table(5))


def test_a_lost_actor_stops_nobody(shared):
    ray.kill(shared._actor)
    assert shared.of("a").read(1, lambda: table(1)).equals(table(1))
    shared.of("a").begin(5, never)
    shared.of("a").leave()


def test_a_silent_group_is_not_waited_for(ray_cluster, monkeypatch):
    monkeypatch.setattr(shared_reads, "_SILENT_S", 0.5)
    actor = shared_reads._Actor(["a", "b"], 1)
    assert actor._is_behind("b", 5)
    time.sleep(0.6)
    assert not actor._is_behind("b", 5)
