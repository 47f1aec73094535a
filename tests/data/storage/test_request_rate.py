"""Reads of a store that throttles: a real store that refuses requests above a rate counts them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from multiprocessing.pool import ThreadPool

import pytest

from radioplat.data.storage import request_rate
from radioplat.data.storage.request_rate import RequestRate, after_each_wait, paced, root_of

SLOW_DOWN = OSError("AWS Error SLOW_DOWN during GetObject operation: Please reduce your request rate.")
PATH = "s3://bucket/a/1.tar"


@pytest.fixture(autouse=True)
def none_limited(monkeypatch):
    monkeypatch.setattr(request_rate, "_rates", {})


@pytest.mark.proof
def test_readers_of_a_store_that_throttles_soon_send_what_it_answers():
    command = [sys.executable, "-m", "benchmarks.judges.store_requests", "benchmarks.store_requests:read_all"]
    how = ["--images", "500", "--rate", "50", "--processes", "2", "--threads", "8"]
    done = subprocess.run([*command, *how], stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["unread"] == 0 and found["refused_share"] < 0.12 and found["times_the_ideal"] < 1.9, found


def refuse() -> None:
    raise SLOW_DOWN


def limited(rate: float) -> RequestRate:
    """The bucket's limit, at a rate in requests a second."""
    with pytest.raises(OSError, match="SLOW_DOWN"):
        paced(PATH, refuse)
    limit = request_rate._rates["s3://bucket"]
    limit._rate = rate
    return limit


def test_a_limit_holds_for_all_threads_and_one_bucket():
    limited(20.0)
    begin = time.monotonic()
    with ThreadPool(8) as pool:
        pool.map(lambda _: request_rate._rates["s3://bucket"].wait(), range(20), chunksize=1)
    assert 19 / 20 <= time.monotonic() - begin < 19 / 20 + 0.5
    begin = time.monotonic()
    for _ in range(100):
        paced("s3://other/1.tar", lambda: None)
    assert time.monotonic() - begin < 0.2
    assert root_of("s3://bucket") == root_of(PATH) == "s3://bucket" and root_of("/a/b/1.tar") == "/a/b"


def test_only_throttling_answers_limit():
    for error in (
        OSError(5, "Input/output error"),
        OSError("AWS Error NETWORK_CONNECTION"),
        OSError("HTTP status 500"),
    ):
        with pytest.raises(OSError):
            paced(PATH, lambda error=error: (_ for _ in ()).throw(error))
    assert not request_rate._rates
    limited(20.0)


def test_one_throttling_answer_costs_a_third_of_the_rate_and_not_for_long():
    def requests() -> int:
        end = time.monotonic() + 0.5
        return sum(paced(PATH, lambda: time.sleep(0.005)) is None for _ in iter(lambda: time.monotonic() < end, False))

    full = requests()
    with pytest.raises(OSError, match="SLOW_DOWN"):
        paced(PATH, refuse)
    assert 0.5 * full < requests() < 0.9 * full
    limit = request_rate._rates["s3://bucket"]
    limit._cut_at -= 20.0  # so long ago
    requests()
    assert limit._rate > 0.9 * limit._before_cut  # the number of requests is also the machine's


def test_answers_to_requests_from_before_a_cut_do_not_cut_again():
    limit = limited(100.0)
    sent = [limit.wait() for _ in range(4)]
    for at in sent:
        limit.throttled(at)
    assert limit._rate == pytest.approx(70.0)
    limit.throttled(limit.wait())
    assert limit._rate == pytest.approx(49.0)


def test_a_limit_that_is_too_low_stops_no_read_and_is_known_as_a_wait(monkeypatch):
    monkeypatch.setattr(request_rate, "LONGEST_WAIT_S", 0.4)
    limited(0.5)
    calls: list[float] = []
    begin = time.monotonic()
    with after_each_wait(lambda: calls.append(time.monotonic())), ThreadPool(8) as pool:
        pool.map(lambda _: paced(PATH, lambda: None), range(8), chunksize=1)
    assert time.monotonic() - begin < 1.5 and len(calls) >= 7


def test_a_rate_recovers_within_seconds_and_a_limit_that_holds_up_nothing_is_dropped(monkeypatch):
    limit = limited(20.0)
    for _ in range(6):
        limit.throttled(time.monotonic())
    low, begin = limit._rate, time.monotonic()
    assert low < 3
    with ThreadPool(8) as pool:
        while time.monotonic() - begin < 5:
            pool.map(lambda _: paced(PATH, lambda: None), range(8), chunksize=1)
    assert limit._rate > 20
    monkeypatch.setattr(request_rate, "FREE_AFTER_S", 0.2)
    time.sleep(0.3)
    paced(PATH, lambda: None)
    assert not request_rate._rates
