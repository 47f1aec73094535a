"""The feeder yields the stream in order, after what was put back, without answers of teachers that are left out."""

from __future__ import annotations

import contextlib
from itertools import islice

import numpy as np
import pytest

from radioplat.data.batch import Batch, View
from radioplat.spec.loading.load import load_spec
from radioplat.spec.resolved.teacher import resolve_teachers
from radioplat.training.feed.feeder import Feeder

SPEC = {"dataset": {"img_size": 8, "batch_size": 1}, "distill": {"teacher": [{"name": "a"}, {"name": "b"}]}}


class Numbers:
    """A client whose answer is the number of the micro-batch."""

    def share(self, pixels: np.ndarray, batch: Batch | None = None) -> np.ndarray:
        return pixels

    def submit(self, shared: np.ndarray, number: int):
        return lambda: number


def batches(count: int):
    ids = np.arange(1)
    for number in range(count):
        view = View(np.zeros((1, 3, 8, 8), np.uint8), np.eye(3, dtype=np.float32)[None])
        yield Batch(number, {"8": view, "224": view}, ids, ids, np.ones(1, np.float32), ids)


def feeder(count: int, depth: int = 1) -> contextlib.closing[Feeder]:
    teachers = resolve_teachers(load_spec(SPEC))
    return contextlib.closing(Feeder(batches(count), {"a": Numbers(), "b": Numbers()}, teachers, depth))


def test_what_is_put_back_comes_first_and_the_end_stays_the_end():
    with feeder(5) as it:
        first = list(islice(it, 3))
        it.put_back(first)
        assert [batch.micro_batch for batch, _ in it] == [0, 1, 2, 3, 4]
        assert list(it) == []


def test_a_teacher_that_is_left_out_is_not_asked_any_more():
    with feeder(6) as it:
        assert next(it)[1].keys() == {"a", "b"}
        it.leave_out({"a"})
        later = [answers.keys() for _, answers in it]
        assert later[-2:] == [{"b"}, {"b"}], "two may have been asked ahead"


def test_an_error_of_the_stream_comes_where_its_batch_would_have_been():
    def broken():
        yield from batches(1)
        raise OSError("no such shard")

    teachers = resolve_teachers(load_spec(SPEC))
    with contextlib.closing(Feeder(broken(), {"a": Numbers(), "b": Numbers()}, teachers, 2)) as it:
        assert next(it)[0].micro_batch == 0
        with pytest.raises(OSError, match="no such shard"):
            next(it)
