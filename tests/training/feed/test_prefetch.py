"""Micro-batches ahead of the training thread: order, errors, waiting times, and who computes what."""

from __future__ import annotations

import contextlib
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from radioplat.data.batch import Batch, View
from radioplat.errors import TeacherSilent, TrainingError
from radioplat.models.features import Features
from radioplat.spec.loading.load import load_spec
from radioplat.spec.resolved.teacher import resolve_teachers
from radioplat.teachers.serving.transport import pack, to_host
from radioplat.training.feed.feeder import Feeder
from radioplat.training.feed.micro_batches import MicroBatches
from radioplat.training.feed.prefetch import Prefetch
from radioplat.training.hooks.step_record import StepRecord
from radioplat.training.watch.phases import DATA, TEACHER, Phases

B, WIDTH = 2, 3
SPEC = {
    "dataset": {"img_size": 8, "batch_size": B},
    "distill": {"teacher": [{"name": n, "mode": "combo", "loss_type": "MSE", "input_size": 8} for n in "ab"]},
}
TEACHERS = resolve_teachers(load_spec(SPEC))
CPU = torch.device("cpu")


def ids(number: int) -> np.ndarray:
    return np.arange(number * B, (number + 1) * B)


def batch_of(number: int) -> Batch:
    pixels = np.full((B, 3, 8, 8), number % 256, np.uint8)
    pixels.flags.writeable = False  # as Ray hands it out
    view = View(pixels, np.tile(np.eye(3, dtype=np.float32), (B, 1, 1)))
    return Batch(number, {"8": view}, ids(number), ids(number), np.ones(B, np.float32), np.full(B, -1))


class Teacher:
    """A client in another process, which answers the number of the micro-batch, or does what ``when`` has for it."""

    def __init__(self, when: dict | None = None) -> None:
        self.when, self.threads, self.waited_for = when or {}, [], []

    def share(self, pixels: np.ndarray, batch: Batch | None = None) -> np.ndarray:
        return pixels

    def submit(self, shared: np.ndarray, number: int):
        def answer():
            self.threads.append(threading.current_thread())
            self.waited_for.append(number)
            if number in self.when:
                self.when[number]()
            value = torch.full((B, WIDTH), float(number))
            return to_host(pack(Features(value, value.view(B, 1, 1, WIDTH)), 0.25))

        return answer


class Halves:
    """Partitions in which teacher b gets no odd micro-batch."""

    def factors(self, number: int) -> dict[str, float]:
        return {"a": 1.0, "b": 0.0 if number % 2 else 2.0}


def raising(error: Exception):
    def action():
        raise error

    return action


class Feed:
    """The feed of a run of two teachers from ``numbers`` (-1 is padding), and what the training loop does with it."""

    def __init__(self, numbers, a=None, b=None, partitions=None, inline=False, batches=None, depth=2) -> None:
        self.clients = {"a": Teacher(a), "b": Teacher(b)}
        self.run = SimpleNamespace(
            spec=load_spec(SPEC),
            frozen_teachers=TEACHERS,
            partitions=partitions or SimpleNamespace(factors=lambda number: {}),
            student_view="8",
            inner_views=("8",),
            infos={n: SimpleNamespace(summary_dim=WIDTH, spatial_dim=WIDTH, logits_dim=0, named={}) for n in "ab"},
            grids={"a": (1, 1), "b": (1, 1)},
        )
        self.run.students = (self.run,)
        stream = map(batch_of, numbers) if batches is None else batches
        self.feeder = Feeder(stream, self.clients, TEACHERS, 4, partitions)
        self.ahead = Prefetch(self.feeder, self.run, CPU, on_cluster=not inline, depth=depth)
        self.silences, self.answers, self.phases = [], [], Phases()
        self.objective = SimpleNamespace(quarantined=set())
        self.micro_batches = self.begin(not inline)
        self.record = StepRecord(0, 0.0)

    def begin(self, on_cluster: bool) -> MicroBatches:
        order = SimpleNamespace(slice=lambda start, stop: SimpleNamespace(sample_id=np.arange(start, stop)))
        seen = lambda name, features, weight, view: self.answers.append((name, threading.current_thread()))  # noqa: E731
        listeners = (self.phases, seen, self.silences.append)
        return MicroBatches(self.run, order, CPU, on_cluster, self.objective, *listeners)

    def take(self, number: int, arrival=None):
        arrival = arrival or next(self.ahead)
        return self.micro_batches.micro_batch(0, number, arrival, self.record)


@pytest.fixture
def feed():
    """feed(numbers, ...) -> a Feed; closed at the end."""
    opened = []

    def make(*arguments, **options) -> Feed:
        opened.append(Feed(*arguments, **options))
        return opened[-1]

    yield make
    for one in opened:
        one.ahead.close()
        assert not one.ahead._thread.is_alive()


def value(micro, name: str) -> float:
    features = micro.targets[name]
    assert features.summary.dtype is torch.bfloat16 and features.spatial.shape == (B, 1, 1, WIDTH)
    assert torch.equal(features.summary, features.spatial.view(B, WIDTH))
    return float(features.summary[0, 0])


def test_all_come_in_order_with_their_answers_and_the_end_stays_the_end(feed):
    it = feed(range(8))
    for number in range(8):
        micro = it.take(number)
        assert micro.views["8"].unique().tolist() == [number] and value(micro, "a") == value(micro, "b") == number
        assert micro.weight.tolist() == [1, 1] and micro.label.tolist() == [-1, -1]
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(it.ahead)
    assert it.record.received == {"a": (8 * B, 8 * B * 2 * WIDTH * 2), "b": (8 * B, 8 * B * 2 * WIDTH * 2)}
    assert it.record.teacher_seconds == {"a": 2.0, "b": 2.0}


def test_a_thread_waits_for_teachers_elsewhere_and_the_training_thread_computes_inline_ones(feed, recwarn):
    elsewhere, inline = feed(range(3)), feed(range(3), inline=True)
    for it, name in ((elsewhere, "prefetch"), (inline, threading.current_thread().name)):
        micro = [it.take(number) for number in range(3)]
        assert {thread.name for client in it.clients.values() for thread in client.threads} == {name}
        assert {thread for _, thread in it.answers} == {threading.current_thread()}
        assert [value(m, "a") for m in micro] == [0, 1, 2]
    assert not recwarn.list, "of memory that cannot be written"


def test_on_a_cpu_no_pixel_is_copied(feed):
    batches = [batch_of(number) for number in range(2)]
    it = feed((), batches=iter(batches))
    for number, batch in enumerate(batches):
        assert it.take(number).views["8"].data_ptr() == batch.views["8"].pixels.ctypes.data


def test_batches_may_be_read_ahead_of_what_the_device_holds(feed):
    """A detector counts the boxes of the whole step before its first micro-batch."""
    it = feed(range(6), depth=2)
    arrivals = [next(it.ahead) for _ in range(6)]
    assert [arrival.batch.micro_batch for arrival in arrivals] == list(range(6))
    deadline = time.monotonic() + 20
    while it.clients["b"].waited_for != [0, 1] and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)
    assert it.clients["a"].waited_for == [0, 1], "no more than two are on the device"
    for number, arrival in enumerate(arrivals):
        assert value(it.take(number, arrival), "a") == number


def test_a_silent_teacher_is_not_finite_there_and_nowhere_else(feed):
    it = feed(range(3), b={1: raising(TeacherSilent("b says nothing"))})
    micro = [it.take(number) for number in range(3)]
    assert micro[1].targets["b"].summary.isnan().all() and micro[1].targets["b"].spatial.isnan().all()
    assert value(micro[1], "a") == 1 and value(micro[2], "b") == 2
    assert [str(reason) for reason in it.silences] == ["b says nothing"]
    assert it.record.received["b"][0] == 2 * B and it.record.received["a"][0] == 3 * B


def test_an_error_is_raised_where_the_answer_is_needed(feed):
    it = feed(range(4), a={2: raising(ValueError("broken"))})
    assert [value(it.take(number), "a") for number in range(2)] == [0, 1]
    with pytest.raises(ValueError, match="broken"):
        it.take(2)


def test_nobody_waits_for_a_teacher_in_quarantine(feed):
    it = feed(range(40), b={number: raising(ValueError("broken")) for number in range(40)})
    it.objective.quarantined.add("b")
    for number in range(40):
        if number == 5:
            it.ahead.leave_out(it.objective.quarantined)
        micro = it.take(number)
        assert micro.targets.keys() == {"a"} and not micro.overlaps
    assert set(it.clients["b"].waited_for) < set(range(16)), "some were asked ahead"


def test_padding_and_absent_teachers_have_zeros_that_are_made_once(feed):
    it = feed([0, 1, -1, -1], partitions=Halves())
    whole, half, *padding = (it.take(number) for number in (0, 1, -1, -1))
    assert (value(whole, "a"), value(whole, "b"), value(half, "a")) == (0, 0, 1) and whole.factors["b"] == 2
    for micro, names in ((half, "b"), (padding[0], "ab"), (padding[1], "ab")):
        for name in names:
            features = micro.targets[name]
            assert not features.summary.any() and not features.named["logits"].any()
            assert features is half.targets[name] or name == "a"
    assert padding[0].targets["a"] is padding[1].targets["a"]
    assert it.clients["b"].waited_for == [0] and it.clients["a"].waited_for == [0, 1]


def test_another_order_is_an_error_before_any_answer_is_waited_for(feed):
    gate = threading.Event()
    it = feed([4], a={4: gate.wait})
    with pytest.raises(TrainingError, match="micro-batch 4 arrived where the order has 3"):
        it.take(3)
    gate.set()


def test_an_error_of_the_stream_comes_where_its_batch_would_have_been(feed):
    def broken():
        yield batch_of(0)
        raise OSError("no such shard")

    it = feed((), batches=broken())
    it.take(0)
    for _ in range(2):
        with pytest.raises(OSError, match="no such shard"):
            next(it.ahead)


def test_after_a_roll_back_the_next_loop_goes_on_with_what_has_arrived(feed):
    it = feed(range(6))
    first = [value(it.take(number), "a") for number in range(2)]
    it.micro_batches = it.begin(on_cluster=True)  # the trainer is built anew, the stream stays
    assert first + [value(it.take(number), "a") for number in range(2, 6)] == list(range(6))


def test_what_was_put_back_for_its_steps_comes_first():
    stream = Feed(range(5))
    with contextlib.closing(stream.ahead):
        pass
    clients = {"a": Teacher(), "b": Teacher()}
    feeder = Feeder(map(batch_of, range(5)), clients, TEACHERS, 2)
    feeder.put_back([next(feeder) for _ in range(3)])
    with contextlib.closing(Prefetch(feeder, stream.run, CPU, on_cluster=True)) as ahead:
        assert [arrival.batch.micro_batch for arrival in _received(ahead)] == [0, 1, 2, 3, 4]


def _received(ahead):
    for arrival in ahead:
        arrival.receive()
        yield arrival


def later(seconds: float):
    return lambda: time.sleep(seconds)


def test_waiting_counts_while_an_answer_or_a_batch_is_outstanding_and_not_before(feed):
    def slow():
        yield batch_of(0)
        time.sleep(0.6)
        yield batch_of(1)

    it = feed((), batches=slow(), a={0: later(0.6)})
    phases = it.phases
    it.take(0)
    record = it.record
    assert record.wait_teachers > 0.3 and phases.seconds(TEACHER) == pytest.approx(record.wait_teachers, abs=0.1)
    begin = time.perf_counter()
    with phases(DATA):
        arrival = next(it.ahead)
    assert phases.seconds(DATA) >= time.perf_counter() - begin - 0.01
    before = record.wait_teachers
    deadline = time.monotonic() + 20
    while len(it.clients["b"].waited_for) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)  # as a step would take
    it.take(1, arrival)
    assert record.wait_teachers - before < 0.1, "it had arrived"


def test_a_batch_that_is_there_does_not_wait_for_the_next():
    gate = threading.Event()

    def slow():
        yield batch_of(0)
        gate.wait(60)
        yield batch_of(1)

    it = Feed((), batches=slow())
    time.sleep(0.3)  # the thread has read the first, and waits for the second
    begin = time.monotonic()
    assert next(it.ahead).batch.micro_batch == 0 and time.monotonic() - begin < 10
    gate.set()
    assert next(it.ahead).batch.micro_batch == 1
    it.ahead.close(timeout_s=1.0)


@pytest.mark.parametrize("place", ["answer", "batch", "room"])
def test_it_closes_while_its_thread_waits(place):
    gate = threading.Event()

    def hanging():
        yield batch_of(0)
        gate.wait(60)

    it = Feed(range(9), a={0: lambda: gate.wait(60)} if place == "answer" else None) if place != "batch" else None
    it = it or Feed((), batches=hanging())
    next(it.ahead)
    time.sleep(0.2)
    begin = time.monotonic()
    it.ahead.close(timeout_s=1.0)
    assert time.monotonic() - begin < 10
    gate.set()
    it.ahead._thread.join(20)
    assert not it.ahead._thread.is_alive()
