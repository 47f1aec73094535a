"""Log files of each attempt, in ``<task folder>/logs/attempt_NNNN``.

``driver.log``, ``worker_R.log`` and ``teacher_X.log``: output of the processes. ``pulse_R.json``: last known phase of
rank R. ``stacks_R.txt``: stacks of its threads when it hung. ``last_words_R.json``: why it ended, if it knew. Those of
old attempts are packed (`radioplat.tracking.attempts.old_logs`).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from radioplat.common.redact import redact
from radioplat.tracking.attempts.attempts import Attempts
from radioplat.tracking.results import write_atomic


@dataclass(frozen=True)
class LastWords:
    """Why a rank ended.

    Attributes:
        cause: ``hang``, ``oom`` or ``error``.
        time: seconds since 1970.
    """

    attempt: int
    rank: int
    cause: str
    detail: str
    time: float


def attempt_folder(task_folder: Path, attempt: int) -> Path:
    """Return the log folder of ``attempt``, which may not exist."""
    return task_folder / "logs" / f"attempt_{attempt:04d}"


def attempts_in(task_folder: Path) -> list[int]:
    """Return the attempts with a log folder, ascending."""
    records = (re.fullmatch(r"attempt_(\d+)", path.name) for path in (task_folder / "logs").glob("attempt_*"))
    return sorted(int(match[1]) for match in records if match)


def begun(task_folder: Path) -> int:
    """Return the last attempt in which a worker ran; 0 for none. A folder with a driver log only does not count."""
    numbers = attempts_in(task_folder)
    lived = (n for n in reversed(numbers) if any(attempt_folder(task_folder, n).glob("pulse_*.json")))
    return next(lived, 0)


def write_last_words(task_folder: Path, attempt: int, rank: int, cause: str, detail: str) -> None:
    """Record why ``rank`` ends, unless recorded already; never raises, so that a full disk does not hide the reason."""
    path = attempt_folder(task_folder, attempt) / f"last_words_{rank}.json"
    if not path.exists():
        words = LastWords(attempt, rank, cause, redact(detail), time.time())
        with contextlib.suppress(OSError):
            write_atomic(path, json.dumps(asdict(words)) + "\n")


def last_words(task_folder: Path, attempt: int) -> list[LastWords]:
    """Read why the ranks of ``attempt`` ended, the earliest first.

    A rank with stacks but no reason was ended by the timer of ``faulthandler``, as none of its threads could run.
    """
    records, folder = [], attempt_folder(task_folder, attempt)
    for path in folder.glob("last_words_*.json"):
        with contextlib.suppress(OSError, ValueError, TypeError):
            records.append(LastWords(**json.loads(path.read_text(encoding="utf-8"))))
    spoke = {words.rank for words in records}
    for path in folder.glob("stacks_*.txt"):
        rank, state = int(path.stem.rpartition("_")[2]), path.stat()
        if state.st_size and rank not in spoke:
            detail = "a call kept Python's lock for longer than train.hang_timeout_s"
            records.append(LastWords(attempt, rank, "hang", detail, state.st_mtime))
    return sorted(records, key=lambda words: words.time)


def first_words(task_folder: Path, attempt: int) -> LastWords | None:
    """Return why the first rank of ``attempt`` ended that knows more than that an error was raised, or the first."""
    words = last_words(task_folder, attempt)
    return next((w for w in words if w.cause != "error"), words[0] if words else None)


def cause_of(task_folder: Path, attempt: int) -> tuple[str, str]:
    """Return cause and detail of the end of ``attempt``; a rank's own if it is more specific than the driver's.

    Returns:
        ``("", "")`` if nothing was recorded.
    """
    ends = [e for e in Attempts(task_folder).read() if e.attempt == attempt and e.event == "end"]
    cause = (ends[-1].cause or "unknown") if ends else ""
    first = first_words(task_folder, attempt)
    # To the driver, a rank that hung or ran out of memory looks like one that was killed.
    if first is not None and cause in ("", "unknown", "worker_killed", "error"):
        return first.cause, f"rank {first.rank}: {first.detail}"
    return cause, ends[-1].detail if ends else ""


def tee_output(path: Path) -> None:
    """Copy all output of this process to stdout and stderr, also of libraries, into ``path``.

    A separate process copies, so that output right before a kill is not lost. Without ``tee``, or if the folder cannot
    be written, nothing is copied.
    """
    tee = shutil.which("tee")
    if tee is None:
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        for stream, descriptor in ((sys.stdout, 1), (sys.stderr, 2)):
            stream.flush()
            # In a separate session, so that Ctrl-C and the end of this process do not end the copy.
            copier = subprocess.Popen(
                [tee, "-a", str(path)], stdin=subprocess.PIPE, stdout=descriptor, stderr=2, start_new_session=True
            )
            assert copier.stdin is not None
            os.dup2(copier.stdin.fileno(), descriptor)
            copier.stdin.close()
            copier.returncode = 0  # never waited for: it ends with its input
