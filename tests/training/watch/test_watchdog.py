"""Who hangs and who waits: real processes with a real process group, and a watchdog each."""

from __future__ import annotations

import ctypes
import json
import os
import threading
import time
from functools import partial
from pathlib import Path

import pytest
import torch.distributed as dist
from forked import Forked, start_ranks

from radioplat.tracking.attempts.logs import attempt_folder, last_words
from radioplat.training.watch.phases import CHECKPOINT, COLLECTIVE, DATA, Phases
from radioplat.training.watch.watchdog import HANG_EXIT, Watchdog

LIMIT = 2.0


def stuck_for_good() -> None:
    threading.Event().wait()


def late_data(phases: Phases, rank: int) -> None:
    """Rank 1 waits for data for three times the limit, rank 0 for rank 1."""
    phases.at(0)
    if rank == 1:
        with phases(DATA):
            time.sleep(3 * LIMIT)
    with phases(COLLECTIVE):
        dist.barrier()


def one_stuck(phases: Phases, rank: int) -> None:
    """Rank 1 never comes to the barrier."""
    phases.at(7)
    if rank == 1:
        stuck_for_good()
    with phases(COLLECTIVE):
        dist.barrier()


def one_ahead(phases: Phases, rank: int) -> None:
    """Rank 1 waits for data that rank 0 keeps from it: it is further, and so no excuse."""
    phases.at(3, 1 if rank else 0)
    if rank == 0:
        stuck_for_good()
    with phases(DATA):
        time.sleep(4 * LIMIT)


def one_stopped(phases: Phases, rank: int) -> None:
    """Rank 1's process is stopped, watchdog and all."""
    phases.at(2)
    if rank == 1:
        os.kill(os.getpid(), 19)
    with phases(COLLECTIVE):
        dist.barrier()


def slow_checkpoint(phases: Phases, rank: int) -> None:
    """Rank 0 writes for three times the limit, which is seen by its frames alone."""
    phases.at(5)
    with phases(CHECKPOINT):
        end = time.monotonic() + 3 * LIMIT
        while rank == 0 and time.monotonic() < end:
            sum(range(1000))
        dist.barrier()


def lock_held(phases: Phases, rank: int) -> None:
    """A call that keeps Python's lock: no other thread runs, the watchdog's neither."""
    phases.at(1)
    if rank == 0:
        time.sleep(4 * LIMIT / 20)  # let it look once
        ctypes.PyDLL(None).sleep(60)
    time.sleep(60)


def linger_and_end(code: int) -> None:
    """On a busy machine rank 0's watchdog looks later: what it waits in must not break before."""
    time.sleep(0.75 * LIMIT)
    os._exit(code)


CASES = {f.__name__: f for f in (late_data, one_stuck, one_ahead, one_stopped, slow_checkpoint, lock_held)}


def work(case: str, folder: Path) -> None:
    """One worker."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if world > 1:
        dist.init_process_group("gloo")
    phases = Phases()
    said = (folder / f"said_{rank}.txt").open("a", buffering=1)
    say = partial(print, file=said)
    dog = Watchdog(phases, folder, 1, rank, world, LIMIT, say, say, os._exit if rank == 0 else linger_and_end)
    if world > 1:
        dist.barrier()
    CASES[case](phases, rank)
    dog.close()
    if world > 1:
        dist.barrier()


@pytest.fixture
def ended(tmp_path):
    """ended(case, waited=(0, 1)) -> exit codes of those ranks; the others are killed then."""
    running: list[Forked] = []

    def run(case: str, waited: tuple[int, ...] = (0, 1), world: int = 2) -> list[int]:
        running.extend(start_ranks(work, case, tmp_path, world=world))
        codes = [running[rank].wait(90) for rank in waited]
        for worker in running:
            worker.kill()
        said = [worker.output[-3000:] for worker in running]
        assert None not in codes, said
        return codes

    yield run
    for worker in running:
        worker.kill()


def stacks(folder: Path, rank: int) -> str:
    return (attempt_folder(folder, 1) / f"stacks_{rank}.txt").read_text()


def test_waiting_for_data_is_no_hang_on_either_side_and_is_told(ended, tmp_path):
    assert ended("late_data") == [0, 0]
    assert "rank 1 has waited" in (tmp_path / "said_1.txt").read_text()
    assert "for data at step 0" in (tmp_path / "said_1.txt").read_text()
    assert not last_words(tmp_path, 1)
    assert not list(attempt_folder(tmp_path, 1).glob("stacks_*"))


def test_who_waits_for_a_stuck_rank_names_it_and_both_leave_their_stacks(ended, tmp_path):
    assert ended("one_stuck") == [HANG_EXIT, HANG_EXIT]
    words = last_words(tmp_path, 1)
    assert {w.rank for w in words} == {0, 1} and {w.cause for w in words} == {"hang"}, words
    # Rank 0 has one to name, however late either looks. Where rank 0 has ended before rank 1 looks, rank 1 may name
    # it; where rank 1 itself is, it says in any case.
    of = {w.rank: w.detail for w in words}
    assert "rank 1" in of[0], words
    assert "rank 1" in of[1] or ("rank 0" in of[1] and "runs no more" in of[1]), words
    (own,) = (line for line in stacks(tmp_path, 1).splitlines() if line.startswith("---"))
    assert "rank 1" in own and "at step 7" in own, own
    assert "in stuck_for_good" in stacks(tmp_path, 1)
    assert "in barrier" in stacks(tmp_path, 0)
    assert "hangs and ends" in (tmp_path / "said_1.txt").read_text()


def test_a_rank_that_is_ahead_excuses_nobody(ended, tmp_path):
    assert ended("one_ahead", waited=(0,)) == [HANG_EXIT]
    assert "rank 0" in last_words(tmp_path, 1)[0].detail and "in stuck_for_good" in stacks(tmp_path, 0)


def test_a_stopped_process_is_found_by_the_others(ended, tmp_path):
    assert ended("one_stopped", waited=(0,)) == [HANG_EXIT]
    (words,) = last_words(tmp_path, 1)
    assert words.rank == 0 and "rank 1" in words.detail and "runs no more" in words.detail


def test_long_work_that_moves_is_no_hang(ended, tmp_path):
    assert ended("slow_checkpoint") == [0, 0] and not last_words(tmp_path, 1)


def test_a_call_that_keeps_pythons_lock_is_found_by_the_timer(ended, tmp_path):
    (code,) = ended("lock_held", waited=(0,), world=1)
    assert code == 1  # faulthandler's
    assert "in lock_held" in stacks(tmp_path, 0) and "Timeout" in stacks(tmp_path, 0)
    (words,) = last_words(tmp_path, 1)
    assert (words.rank, words.cause) == (0, "hang") and "Python's lock" in words.detail


def test_the_pulse_says_where_a_rank_is(tmp_path):
    phases = Phases()
    phases.at(4, 2)
    dog = Watchdog(phases, tmp_path, 3, 0, 1, 2.0, print, print, end=lambda code: None)
    with phases(DATA):
        deadline, status = time.monotonic() + 10, {}
        while status.get("phase") != DATA and time.monotonic() < deadline:
            time.sleep(0.1)
            status = json.loads((attempt_folder(tmp_path, 3) / "pulse_0.json").read_text())
    dog.close()
    assert (status["rank"], status["step"], status["micro_batch"], status["phase"]) == (0, 4, 2, DATA)
    assert status["process"] == os.getpid()


def test_each_second_belongs_to_one_phase():
    phases = Phases()
    begin = time.monotonic()
    phases.at(0)
    with phases(DATA):
        time.sleep(0.05)
        with phases(COLLECTIVE):
            time.sleep(0.05)
        assert phases.now == DATA
    time.sleep(0.02)
    parts = {name: phases.seconds(name) for name in ("start", "step", DATA, COLLECTIVE)}
    assert parts[DATA] >= 0.05 and parts[COLLECTIVE] >= 0.05 and parts["step"] >= 0.02
    assert sum(parts.values()) == pytest.approx(time.monotonic() - begin, abs=0.02)
