"""Equal requests are computed once while their answers fit into the bytes that are kept."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from radioplat.teachers.serving.packed_features import Packed
from radioplat.teachers.serving.recent_answers import RecentAnswers, request_key


def answer(number: int, rows: int = 4) -> Packed:
    return Packed(np.full((rows, 8), number, np.uint16), None, {}, 1.0)  # 64 bytes


@given(st.lists(st.integers(0, 9), max_size=60), st.integers(0, 10))
def test_the_last_ones_are_kept_and_no_more(requests, most):
    recent, computed, kept = RecentAnswers(64 * most), [], []
    for number in requests:
        known = number in kept
        got = recent.get((number,), lambda number=number: (computed.append(number), answer(number))[1])
        assert got.summary[0, 0] == number and got.seconds == (0.0 if known else 1.0)
        kept = [*(k for k in kept if k != number), number][-most:] if most else []
    assert recent.repeated == len(requests) - len(computed)


def test_one_of_equal_requests_at_the_same_time_computes():
    recent, computed = RecentAnswers(1000), []

    def compute() -> Packed:
        computed.append(threading.get_ident())
        time.sleep(0.1)
        return answer(1)

    with ThreadPoolExecutor(8) as pool:
        answers = [each.result() for each in [pool.submit(recent.get, ("a",), compute) for _ in range(8)]]
    assert len(computed) == 1 and sum(each.seconds for each in answers) == 1.0


def test_an_error_is_not_kept():
    recent = RecentAnswers(1000)

    def fail() -> Packed:
        raise RuntimeError("no memory")

    for _ in range(2):
        with pytest.raises(RuntimeError, match="no memory"):
            recent.get(("a",), fail)
    assert recent.get(("a",), lambda: answer(3)).summary[0, 0] == 3


@given(st.integers(0, 255), st.integers(0, 47))
def test_a_key_is_that_of_the_pixels(value, place):
    pixels = np.arange(48, dtype=np.uint8).reshape(1, 3, 4, 4)
    other = pixels.copy()
    other.flat[place] = value
    assert (request_key(pixels) == request_key(other)) == (value == place)
    assert request_key(pixels) != request_key(pixels.reshape(1, 3, 2, 8))
    assert request_key(np.asfortranarray(pixels)) == request_key(pixels)
