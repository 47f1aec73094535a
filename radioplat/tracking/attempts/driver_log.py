"""``driver.log``: the driver process's output, stored with the logs of the attempt that was running."""

from __future__ import annotations

import contextlib
import logging
import traceback
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

from radioplat.common.redact import redact
from radioplat.tracking.attempts.logs import attempt_folder, attempts_in, begun
from radioplat.tracking.attempts.old_logs import pack_old_logs


@contextlib.contextmanager
def driver_log(task_folder: Path, say: Callable[[str], None]) -> Iterator[Callable[[str], None]]:
    """Log to ``driver.log`` during the block: log records, an error that ends the block, and lines for the user.

    The log is in the folder of the current attempt, or of the next one before its workers start.

    Yields:
        A function that calls ``say`` with a line and logs it.
    """
    log = _DriverLog(task_folder)

    def both(line: str) -> None:
        """Show the line to the user, and log it."""
        log.write(line)
        say(line)

    root = logging.getLogger()
    root.addHandler(log)
    try:
        yield both
    except BaseException:
        log.write(traceback.format_exc())
        raise
    finally:
        root.removeHandler(log)


class _DriverLog(logging.Handler):
    def __init__(self, task_folder: Path) -> None:
        super().__init__()
        self._task, self._first = task_folder, begun(task_folder) + 1
        self._number = 0  # of the attempt of the last line

    def emit(self, record: logging.LogRecord) -> None:
        """Log a record of Python's logging."""
        self.write(f"{record.levelname} {record.name}: {record.getMessage()}")

    def write(self, text: str) -> None:
        """Append ``text`` with the time; never raises, so that a full disk does not end the run."""
        with contextlib.suppress(OSError):
            number = max([self._first, *attempts_in(self._task)])
            path = attempt_folder(self._task, number) / "driver.log"
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "a", encoding="utf-8") as file:
                file.write(f"{datetime.now():%Y-%m-%d %H:%M:%S} {redact(text).rstrip()}\n")
            if number > self._number:
                self._number = number
                pack_old_logs(self._task)
