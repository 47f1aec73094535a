"""All ranks learn at one step that one of them was asked to pause."""

from __future__ import annotations

import pickle

import torch
import torch.distributed as dist
from forked import run_ranks

from radioplat.training.guards.pause import Paused, Pauses, ask_to_pause, is_stepping
from radioplat.training.hooks.step_hook import StepHooks
from radioplat.training.hooks.step_record import StepRecord
from radioplat.training.hooks.step_sums import StepSums


def test_alone():
    pauses, record = Pauses(), StepRecord(0, 0.1)
    pauses.begin_step(0)
    assert is_stepping() and pauses.requested(record) is None
    ask_to_pause("resized", "more room")  # nobody else has to hear of it first
    assert pauses.requested(record).cause == "resized"
    ask_to_pause("drained", "a notice")
    ask_to_pause("resized", "late")
    found = pauses.requested(record)
    assert (found.cause, found.detail) == ("drained", "a notice")
    assert Pauses().requested(record) is None and not is_stepping(), "a new attempt was not asked"


def work_old() -> None:
    """Save when the last checkpoint is five minutes old by rank 0's clock; rank 1 is never asked."""
    dist.init_process_group("gloo")
    first = dist.get_rank() == 0
    hooks, sums, due = StepHooks([pauses := Pauses()]), StepSums(torch.device("cpu")), []
    pauses.checkpoint_s = 300.0 if first else 0.0
    for step in range(8):
        record = StepRecord(step, 0.1)
        sums.begin()
        hooks.begin_step(step)
        if first and step in (2, 5):
            pauses._saved -= 301
        record.share(sums, hooks.sums())
        record.reduce(sums, 1)
        assert pauses.requested(record) is None
        if pauses.must_save(record):
            due.append(step)
            pauses.saved()
    print(due)
    dist.destroy_process_group()


def test_two_ranks_save_at_one_step_when_the_last_checkpoint_is_old():
    assert run_ranks(work_old) == ["[2, 5]\n"] * 2


def test_it_travels():
    found = pickle.loads(pickle.dumps(Paused("drained", "a notice")))
    assert (found.cause, found.detail) == ("drained", "a notice")


def work() -> None:
    """Rank 1 is asked in step 2, after the ranks have exchanged their numbers."""
    dist.init_process_group("gloo")
    number = dist.get_rank()
    hooks, sums = StepHooks([pauses := Pauses()]), StepSums(torch.device("cpu"))
    for step in range(5):
        record = StepRecord(step, 0.1)
        sums.begin()
        hooks.begin_step(step)
        record.share(sums, hooks.sums())
        record.reduce(sums, 1)
        if number == 1 and step == 2:
            ask_to_pause("resized", "more room")
        found = pauses.requested(record)
        if found:
            print(number, step, found.cause)
            break
    dist.destroy_process_group()


def test_two_ranks_stop_at_one_step():
    assert run_ranks(work) == ["0 3 resized\n", "1 3 resized\n"]
