"""All ranks learn at one step that one of them was asked to pause."""

from __future__ import annotations

import pickle

import torch.distributed as dist
from forked import run_ranks

from radioplat.training.guards.pause import Paused, Pauses, ask_to_pause


def test_alone():
    pauses = Pauses()
    pauses.begin_step()
    assert pauses.requested() is None
    ask_to_pause("resized", "more room")  # nobody else has to hear of it first
    assert pauses.requested().cause == "resized"
    ask_to_pause("drained", "a notice")
    ask_to_pause("resized", "late")
    pauses.begin_step()
    found = pauses.requested()
    assert (found.cause, found.detail) == ("drained", "a notice")
    assert Pauses().requested() is None, "a new attempt was not asked"


def test_it_travels():
    found = pickle.loads(pickle.dumps(Paused("drained", "a notice")))
    assert (found.cause, found.detail) == ("drained", "a notice")


def work() -> None:
    """Rank 1 is asked during step 2."""
    dist.init_process_group("gloo")
    number = dist.get_rank()
    pauses = Pauses()
    for step in range(5):
        pauses.begin_step()
        if number == 1 and step == 2:
            ask_to_pause("resized", "more room")
        found = pauses.requested()
        if found:
            print(number, step, found.cause)
            break
    dist.destroy_process_group()


def test_two_ranks_stop_at_one_step():
    assert run_ranks(work) == ["0 3 resized\n", "1 3 resized\n"]
