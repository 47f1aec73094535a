"""Finds a worker that makes no progress, saves what its threads are at, and ends it, so that the group starts again."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from radioplat.data.storage.outage import is_waiting
from radioplat.tracking.attempts.logs import attempt_folder, write_last_words
from radioplat.training.watch.phases import COLLECTIVE, LONG, WAITS, Phases

HANG_EXIT = 70  # of a process that ended itself because it hung
_SLOWEST, _QUICKEST = 10.0, 0.1  # seconds between two looks


@dataclass(frozen=True)
class HealthStatus:
    """Where a rank says it is.

    Attributes:
        ticks: looks so far; a rank whose process stands still, or whose node is gone, counts no more.
        still_s: seconds without progress.
    """

    rank: int
    host: str
    process: int
    ticks: int
    phase: str
    step: int
    micro_batch: int
    still_s: float

    def __str__(self) -> str:
        where = f"at step {self.step}, micro-batch {self.micro_batch}" if self.step >= 0 else "before the first step"
        return f"rank {self.rank} ({self.host}, process {self.process}) in phase {self.phase} {where}"


class Watchdog:
    """A thread beside the training thread; every rank has one.

    A rank hangs when it has made no progress for ``limit_s`` and no other rank explains it. One that waits for data or
    a teacher does not hang, however long: that is said, and those waits have limits of their own. One that waits for
    another rank does not hang while that one waits or moves. Ranks see each other through ``pulse_R.json``, small files
    beside the logs, which they read only when they stand still themselves. Nobody compares clocks.

    A rank that holds Python's lock lets no thread run, this one included: for that, the looks wind up a timer of
    ``faulthandler``, which needs no lock.

    Args:
        folder: the task's results folder.
        attempt: whose logs these are.
        world_size: ranks 0 to ``world_size - 1`` are looked at.
        say: called when a wait is long, and again whenever it has doubled.
        say_hang: called right before this process ends.
        end: how the process ends.
    """

    def __init__(
        self,
        phases: Phases,
        folder: Path,
        attempt: int,
        rank: int,
        world_size: int,
        limit_s: float,
        say: Callable[[str], None],
        say_hang: Callable[[str], None],
        end: Callable[[int], None] = os._exit,
    ) -> None:
        self._phases, self._task, self._attempt, self._rank = phases, folder, attempt, rank
        self._world, self._limit, self._say, self._say_hang, self._end = world_size, limit_s, say, say_hang, end
        self._every = min(max(limit_s / 20, _QUICKEST), _SLOWEST)
        self._folder = attempt_folder(folder, attempt)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._stacks = open(self._folder / f"stacks_{rank}.txt", "a", encoding="utf-8")
        self._mark, self._still_since = phases.mark(), time.monotonic()
        self._last_reported_s = 0.0
        self._ticks = 0
        self._ticks_of: dict[int, tuple[int, float]] = {}  # by rank: its ticks, and when they last grew
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
        self._beat()
        self._thread.start()

    def close(self) -> None:
        """End the watch. A rank that closes in good order is found by nobody."""
        self._stop.set()
        self._thread.join()
        faulthandler.cancel_dump_traceback_later()
        self._stacks.close()
        with contextlib.suppress(OSError):
            path = self._folder / f"stacks_{self._rank}.txt"
            if path.stat().st_size == 0:
                path.unlink()

    def _run(self) -> None:
        last = time.monotonic()
        while not self._stop.wait(self._every):
            now = time.monotonic()
            if now - last > self._limit / 2:
                # This process itself was stopped, or starved: that tells nothing of the thread that it watches.
                self._still_since = now
            last = now
            faulthandler.dump_traceback_later(self._limit + 2 * self._every, exit=True, file=self._stacks)
            self._beat()
            self._look()

    def _beat(self) -> None:
        mark, now = self._phases.mark(), time.monotonic()
        # A validation may wait for storage; its first sign of progress comes after the wait.
        waits = self._phases.now in LONG and is_waiting()
        if mark != self._mark or waits:
            self._mark, self._still_since, self._last_reported_s = mark, now, 0.0
        self._ticks += 1
        with contextlib.suppress(OSError):
            aside = self._folder / f".pulse_{self._rank}"
            aside.write_text(json.dumps(asdict(self._mine())))
            os.replace(aside, self._folder / f"pulse_{self._rank}.json")

    def _mine(self) -> HealthStatus:
        still = time.monotonic() - self._still_since
        place = (self._phases.now, *self._phases.position)
        return HealthStatus(self._rank, socket.gethostname(), os.getpid(), self._ticks, *place, round(still, 3))

    def _look(self) -> None:
        mine = self._mine()
        if mine.still_s < self._limit / 2:
            self._ticks_of.clear()
            return
        others = self._others()  # from half-time on, so that at the end it is known whose ticks still grow
        if mine.still_s < self._limit:
            return
        if mine.phase in WAITS:
            self._tell(mine)
            return
        awake = [status for status in others if time.monotonic() - self._ticks_of[status.rank][1] < self._limit / 4]
        if not any(self._explains(status, mine) for status in awake):
            self._hangs(mine, others, awake)

    def _explains(self, other: HealthStatus, mine: HealthStatus) -> bool:
        """Whether ``mine`` may stand still because ``other``, which is not ahead of it, waits or works."""
        behind = (other.step, other.micro_batch) <= (mine.step, mine.micro_batch)
        return behind and (other.phase in WAITS or other.still_s < self._limit)

    def _others(self) -> list[HealthStatus]:
        statuses, now = [], time.monotonic()
        for rank in range(self._world):
            with contextlib.suppress(OSError, ValueError, TypeError):
                if rank != self._rank:
                    status = HealthStatus(**json.loads((self._folder / f"pulse_{rank}.json").read_text()))
                    if self._ticks_of.get(rank, (-1, 0.0))[0] != status.ticks:
                        self._ticks_of[rank] = (status.ticks, now)
                    statuses.append(status)
        return statuses

    def _tell(self, mine: HealthStatus) -> None:
        if mine.still_s >= 2 * self._last_reported_s:
            self._last_reported_s = mine.still_s
            source = "data" if mine.phase == "data" else "a teacher"
            step = max(0, mine.step)
            self._say(f"rank {self._rank} has waited {mine.still_s:.0f} s for {source} at step {step}: no hang")

    def _hangs(self, mine: HealthStatus, others: list[HealthStatus], awake: list[HealthStatus]) -> None:
        asleep = [status for status in others if status not in awake]
        moving = [status for status in [mine, *awake] if status.phase != COLLECTIVE] or [mine, *awake]
        # Who is furthest back keeps the others.
        first = min(moving, key=lambda p: (p.step, p.micro_batch, p.phase == COLLECTIVE))
        why = f"{first} makes no progress"
        if asleep:
            why = f"{asleep[0]} runs no more: its process was stopped, or its node is lost"
        detail = f"no progress for {mine.still_s:.0f} s (train.hang_timeout_s {self._limit:g}): {why}"
        print(f"--- {mine}, {mine.still_s:.0f} s", file=self._stacks, flush=True)
        faulthandler.dump_traceback(self._stacks, all_threads=True)
        self._stacks.flush()
        with contextlib.suppress(OSError):
            os.fsync(self._stacks.fileno())
        write_last_words(self._task, self._attempt, self._rank, "hang", detail)
        with contextlib.suppress(Exception):
            self._say_hang(f"rank {self._rank} hangs and ends: {detail}; its stacks: {self._stacks.name}")
        self._end(HANG_EXIT)
