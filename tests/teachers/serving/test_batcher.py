"""Requests of many threads in forwards of one shape: each gets what it would get alone."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from radioplat.teachers.serving.batcher import Batcher
from radioplat.teachers.serving.teacher_runner import TeacherRunner
from radioplat.teachers.serving.transport import Packed

GRID, WANTED = (2, 2), frozenset({"summary", "spatial"})


def images(count: int, seed: int = 0, side: int = 64) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 3, side, side), dtype=np.uint8)


def same(a: Packed, b: Packed) -> bool:
    return torch.equal(a.summary, b.summary) and torch.equal(a.spatial, b.spatial)


@pytest.fixture
def runner(timm_teacher):
    """runner(max_batch) -> a real small ViT at that shape."""

    def make(max_batch: int) -> TeacherRunner:
        teacher, _ = timm_teacher("test_vit", mode="combo", loss_type="MSE", service={"max_batch": max_batch})
        return TeacherRunner(teacher, "cpu")

    return make


@pytest.mark.parametrize("rows", [1, 3, 8, 11, 16])
def test_every_forward_has_one_shape_and_padding_is_not_seen(runner, rows):
    padded, pixels = runner(8), images(rows)
    found = padded(pixels, GRID, WANTED)
    assert padded.shapes == {(8, 3, 64, 64)} and len(found) == rows
    parts = [padded(pixels[i : i + 8], GRID, WANTED) for i in range(0, rows, 8)]
    assert torch.equal(found.summary, torch.cat([p.summary for p in parts]))
    with_others = padded(np.concatenate([pixels[:1], images(7, seed=9)]), GRID, WANTED)
    assert same(with_others.rows(0, 1), found.rows(0, 1)), "what stands beside a sample changes nothing"


def test_students_that_share_a_teacher_get_what_they_would_get_alone(runner):
    shared, alone = runner(8), runner(8)
    batcher = Batcher(shared, 8)
    requests = [images(4, seed) for seed in range(12)]
    with ThreadPoolExecutor(6) as students:
        found = list(students.map(lambda pixels: batcher(pixels, GRID, WANTED), requests))
    for pixels, packed in zip(requests, found, strict=True):
        assert same(packed, alone(pixels, GRID, WANTED))
    assert shared.shapes == {(8, 3, 64, 64)} and batcher.waiting == 0


class Held:
    """A forward that waits for :attr:`gate`, and notes what it was given."""

    def __init__(self):
        self.gate, self.began, self.sizes = threading.Event(), threading.Event(), []

    def __call__(self, pixels, grid, wanted):
        self.sizes.append(len(pixels))
        self.began.set()
        assert self.gate.wait(20)
        if pixels[0, 0, 0, 0] == 255:
            raise ValueError("white")
        return Packed(pixels[:, 0, 0, :1].astype(np.uint16), None, {}, 1.0)


def ask(batcher, pool, value, count, side=4, grid=GRID):
    return pool.submit(batcher, np.full((count, 3, side, side), value, np.uint8), grid, WANTED)


def test_what_queues_up_is_taken_along_where_it_fits_and_is_alike():
    held = Held()
    batcher = Batcher(held, 8)
    with ThreadPoolExecutor(8) as pool:
        first = ask(batcher, pool, 1, 4)
        assert held.began.wait(20)
        later = [ask(batcher, pool, 2, 4)]
        while batcher.waiting < 2:
            pass
        for number, request in enumerate(({"value": 3, "count": 4}, {"value": 4, "count": 4, "side": 8})):
            later.append(ask(batcher, pool, **request))
            while batcher.waiting < 3 + number:
                pass
        later.append(ask(batcher, pool, 5, 4, grid=(1, 1)))
        while batcher.waiting < 5:
            pass
        held.gate.set()
        answers = [f.result(20) for f in (first, *later)]
    assert held.sizes == [4, 8, 4, 4]
    assert [int(a.summary[0, 0]) for a in answers] == [1, 2, 3, 4, 5]
    assert answers[1].seconds == pytest.approx(0.5)  # half of the forward that two shared


def test_an_error_reaches_those_who_asked_and_nobody_else():
    held = Held()
    held.gate.set()
    batcher = Batcher(held, 2)
    with ThreadPoolExecutor(2) as pool:
        with pytest.raises(ValueError, match="white"):
            ask(batcher, pool, 255, 2).result(20)
        assert int(ask(batcher, pool, 7, 2).result(20).summary[0, 0]) == 7


class Device:
    """A device that computes what was started only when it is told to; ``finish`` waits for that."""

    def __init__(self):
        self.started, self.gate = [], threading.Semaphore(0)

    def start(self, pixels, grid, wanted):
        self.started.append(int(pixels[0, 0, 0, 0]))
        return pixels

    def finish(self, pixels):
        assert self.gate.acquire(timeout=20)
        if pixels[0, 0, 0, 0] == 255:
            raise ValueError("white")
        return Packed(pixels[:, 0, 0, :1].astype(np.uint16), None, {}, 1.0)


def wait_until(true) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_one_forward_is_started_while_another_computes_and_no_third():
    device = Device()
    batcher = Batcher(device.start, 2, device.finish)
    with ThreadPoolExecutor(8) as pool:
        answers = []
        for number, value in enumerate((1, 255, 3, 4)):
            answers.append(ask(batcher, pool, value, 2))
            wait_until(lambda count=number + 1: batcher.waiting == count)
        wait_until(lambda: len(device.started) == 2)
        time.sleep(0.1)
        assert device.started == [1, 255] and not any(answer.done() for answer in answers)
        device.gate.release()
        assert int(answers[0].result(20).summary[0, 0]) == 1
        wait_until(lambda: len(device.started) == 3)
        for _ in range(3):
            device.gate.release()
        with pytest.raises(ValueError, match="white"):
            answers[1].result(20)
        assert [int(a.result(20).summary[0, 0]) for a in answers[2:]] == [3, 4] and device.started == [1, 255, 3, 4]
