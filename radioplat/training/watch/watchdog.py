"""Detect a worker that makes no progress, save its threads' stacks, and end it, so that the group restarts."""

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

HANG_EXIT = 70  # exit code of a process that ended because it hung
_SLOWEST, _QUICKEST = 10.0, 0.1  # limits of the seconds between two checks


@dataclass(frozen=True)
class HealthStatus:
    """Status that a rank writes to its ``pulse_R.json``.

    Attributes:
        ticks: number of checks so far; it stops growing if the process is stopped or the node is lost.
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
    """A thread on every rank that checks the progress of the training thread.

    A rank hangs if it has made no progress for ``limit_s`` and no other rank explains it. A rank that waits for data or
    a teacher does not hang, however long it waits: this is reported, and those waits have separate limits. A rank that
    waits for another rank does not hang while the other one waits or makes progress. Ranks read each other's state from
    the small files ``pulse_R.json`` next to the logs, and only while they make no progress themselves. Clocks of
    different machines are not compared.

    A thread that holds the GIL stops all Python threads, including this one. Each check therefore restarts a timer of
    ``faulthandler``, which does not need the GIL.

    Args:
        folder: the task's results folder.
        attempt: number of the attempt, for the folder of the logs.
        world_size: ranks 0 to ``world_size - 1`` are checked.
        say: called when a wait is long, and again each time it has doubled.
        say_hang: called immediately before this process ends because of a hang.
        end: ends the process with the given exit code.
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
        self._ticks_of: dict[int, tuple[int, float]] = {}  # by rank: its ticks, and when they last increased
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
        self._beat()
        self._thread.start()

    def close(self) -> None:
        """End the thread and remove an empty stacks file. A rank that has closed is never reported as hanging."""
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
                # This process was stopped or got no CPU time, so the lack of progress means nothing.
                self._still_since = now
            last = now
            faulthandler.dump_traceback_later(self._limit + 2 * self._every, exit=True, file=self._stacks)
            self._beat()
            self._look()

    def _beat(self) -> None:
        mark, now = self._phases.mark(), time.monotonic()
        # A validation may wait for storage, without a sign of progress until the wait ends.
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
        others = self._others()  # read from limit / 2 on, to know at the limit whose ticks still grow
        if mine.still_s < self._limit:
            return
        if mine.phase in WAITS:
            self._tell(mine)
            return
        awake = [status for status in others if time.monotonic() - self._ticks_of[status.rank][1] < self._limit / 4]
        if not any(self._explains(status, mine) for status in awake):
            self._hangs(mine, others, awake)

    def _explains(self, other: HealthStatus, mine: HealthStatus) -> bool:
        """Return True if ``mine`` may be waiting for ``other``: it is not ahead, and waits or makes progress."""
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
        # The rank that is furthest behind blocks the others.
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
