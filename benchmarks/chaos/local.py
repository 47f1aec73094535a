"""What is done to a run on one machine: kills, a full disk, a second writer, a moving clock, torn lines."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from benchmarks.chaos.process import HANG_S, Start
from benchmarks.chaos.trial import NAMED, STEPS, TRY_AGAIN, Quiet, Trial

LINES = ("status.json", "attempts.jsonl", "accounts.jsonl", "ledger/windows.jsonl")


def kill(trial: Trial, quiet: Quiet) -> None:
    """End the process at random operations on its files, some starts in a row."""
    for _ in range(trial.rng.randint(1, 3)):
        operation = trial.rng.randint(1, quiet.operations)
        trial.faults.kill_at(operation)
        status = trial.start().wait()
        trial.done.append(f"killed at file operation {operation}" if status == -signal.SIGKILL else f"exit {status}")
        trial.faults.kill_at(0)
    trial.finish()


def kill_at_a_time(trial: Trial, quiet: Quiet) -> None:
    """End the process at random steps, or ask it to stop."""
    for _ in range(trial.rng.randint(1, 3)):
        step, number = trial.rng.randint(0, STEPS - 1), trial.rng.choice((signal.SIGKILL, signal.SIGTERM))
        begun = trial.start()
        if begun.until(lambda: trial.steps() >= step, HANG_S):  # noqa: B023 (called here alone)
            begun.kill(number)
        status = begun.wait()
        trial.done.append(f"{number.name} after step {step}: exit {status}")
        if status not in (0, TRY_AGAIN, -signal.SIGKILL, -signal.SIGTERM):
            trial.problems.append(f"{number.name}: exit status {status}: {begun.text.strip()[-300:]}")
    trial.finish()


def full_disk(trial: Trial, quiet: Quiet) -> None:
    """The results are on a disk that is full at some point, and has room again later."""
    used = trial.rng.randint(100, 3000)
    with _disk(trial.folder / "run", used) as grow:
        status = trial.start().wait()
        trial.done.append(f"a disk of {used} KiB: exit {status}")
        if status not in (0, NAMED):
            trial.problems.append(f"full disk: exit status {status}: {trial.starts[-1].text.strip()[-300:]}")
        grow()
        trial.finish()
        subprocess.run(["cp", "-a", str(trial.folder / "run"), str(trial.folder / "kept")], check=True)
    os.rmdir(trial.folder / "run")
    os.rename(trial.folder / "kept", trial.folder / "run")


def two_writers(trial: Trial, quiet: Quiet) -> None:
    """A second start in the same folder, while the first one runs or stands still."""
    first, step = trial.start(), trial.rng.randint(0, STEPS - 4)
    if first.until(lambda: trial.steps() >= step):
        still = trial.rng.random() < 0.5
        if still:
            first.kill(signal.SIGSTOP)
        second = trial.start()
        status = second.wait()
        trial.done.append(f"a second start after step {step}, the first {'stopped' if still else 'at work'}: {status}")
        over = status == 0 and first.status == 0  # the first one had ended
        if not over and (status != NAMED or "another run writes this folder" not in second.text):
            trial.problems.append(f"the second writer: exit status {status}: {second.text.strip()[-300:]}")
        if still:
            first.kill(signal.SIGCONT)
    if first.wait() != 0:
        trial.problems.append(f"the first writer: exit status {first.status}: {first.text.strip()[-300:]}")


def clock(trial: Trial, quiet: Quiet) -> None:
    """The clock jumps while it runs, and it is killed and started again at another time."""
    for _ in range(trial.rng.randint(1, 2)):
        begun, step = trial.start(), trial.rng.randint(0, STEPS - 4)
        if begun.until(lambda: trial.steps() >= step):  # noqa: B023 (called here alone)
            jump = trial.rng.choice((-1, 1)) * trial.rng.choice((1, 61, 3600, 40 * 86400))
            trial.faults.shift_clock(jump)
            trial.done.append(f"the clock jumps by {jump} s after step {step}")
            if trial.rng.random() < 0.6 and begun.until(lambda: trial.steps() >= step + 2):  # noqa: B023
                begun.kill()
        status = begun.wait()
        if status not in (0, -signal.SIGKILL):
            trial.problems.append(f"clock: exit status {status}: {begun.text.strip()[-300:]}")
    trial.finish()


def torn_lines(trial: Trial, quiet: Quiet) -> None:
    """It is killed, and files of lines lose their end, or get half a line."""
    begun, step = trial.start(), trial.rng.randint(1, STEPS - 1)
    if begun.until(lambda: trial.steps() >= step):
        begun.kill()
    begun.wait()
    for name in LINES:
        path = trial.run / name
        if path.exists() and trial.rng.random() < 0.7:
            content = path.read_bytes()
            cut = trial.rng.randint(1, min(40, len(content) or 1))
            half = trial.rng.choice((b'{"kind": "wind', b"\0" * 30, b'{"step": 3, "kpi', b"\xff\xfe{"))
            # What follows the last whole line is all that a killed or crashed writer can leave.
            torn = trial.rng.random() < 0.5 and name != "ledger/windows.jsonl"
            path.write_bytes(content[:-cut] if torn else content + half)
            trial.done.append(f"{name} {'lost its last bytes' if torn else 'got half a line'} after step {step}")
    trial.finish()


@contextlib.contextmanager
def _disk(folder: Path, kib: int) -> Iterator:
    """A file system of its own on ``folder``, with room for so much; yields what gives it more."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kib}k", "chaos", str(folder)], check=True)
    try:
        more = ["mount", "-o", "remount,size=200000k", str(folder)]
        yield lambda: subprocess.run(more, check=True)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


KINDS = {each.__name__: each for each in (kill, kill_at_a_time, full_disk, two_writers, clock, torn_lines)}
__all__ = ["KINDS", "Start"]
