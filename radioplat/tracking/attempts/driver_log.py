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


@contextlib.contextmanager
def driver_log(task_folder: Path, say: Callable[[str], None]) -> Iterator[Callable[[str], None]]:
    """Yields ``say`` for lines that are to be logged as well; log records and the error that ends the block are too.

    What is said goes into the folder of the attempt that is under way, or of the next one before its workers live.
    """
    log = _DriverLog(task_folder)

    def both(line: str) -> None:
        """Tell the user, and write it down."""
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

    def emit(self, record: logging.LogRecord) -> None:
        """A line of some library."""
        self.write(f"{record.levelname} {record.name}: {record.getMessage()}")

    def write(self, text: str) -> None:
        """Append ``text`` with the time. Never raises: a log must not end what it is of."""
        with contextlib.suppress(OSError):
            number = max([self._first, *attempts_in(self._task)])
            path = attempt_folder(self._task, number) / "driver.log"
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "a", encoding="utf-8") as file:
                file.write(f"{datetime.now():%Y-%m-%d %H:%M:%S} {redact(text).rstrip()}\n")
