"""Wait for storage that fails, and report the wait to the driver.

Failing storage is not bad data: the read waits until the store answers or ``dataset.storage_timeout_s`` is over. A
waiting process writes a small file to the folder set by :func:`note_waits_in`, so that the driver of a run sees the
waits of all processes on all nodes (:func:`read_waits`). If a store fails as a whole, one read tries for all
(:mod:`radioplat.data.storage.probes`).
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import socket
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from radioplat.data.storage import probes
from radioplat.data.storage.object_stores import credentials_refused, renew_clients, request
from radioplat.data.storage.request_rate import waited
from radioplat.errors import StorageError
from radioplat.spec.resolved.paths import is_remote

FOLDER = "storage_waits"

_GONE = frozenset({errno.ENOENT, errno.ENOTDIR})
_GONE_WORDS = ("NO_SUCH_KEY", "RESOURCE_NOT_FOUND")
_DENIED = frozenset({errno.EACCES, errno.EPERM})

_logger = logging.getLogger(__name__)
_lock = threading.Lock()
_waiting: dict[int, StorageWait] = {}  # of this process, by thread
_folder: Path | None = None


@dataclass(frozen=True)
class WaitNote:
    """Report of a process that waits for storage.

    Attributes:
        path: the file that cannot be read.
        answer: the store's last error.
        seconds: time since the read began.
        tries: number of tries so far; it no longer grows after the process has ended.
    """

    path: str
    answer: str
    seconds: float
    tries: int


def is_gone(error: OSError) -> bool:
    """Return True if the store reports that the file does not exist."""
    return error.errno in _GONE or any(word in str(error) for word in _GONE_WORDS)


def may_be_of_one_file(path: str, error: OSError) -> bool:
    """Return True if ``error`` may concern this file alone and not the whole store.

    A disk has bad sectors, a striped file system may lose some files, and an object may have its own permissions. Other
    errors of object stores (overload, a lost connection, an expired token) never concern a single object.
    """
    return not is_remote(path) or error.errno in _DENIED or "ACCESS_DENIED" in str(error) or is_gone(error)


def root_is_there(root: str) -> bool:
    """Return True if the folder or bucket of a source exists; an empty folder counts as an unmounted mount point.

    Raises:
        OSError: the store does not answer.
    """
    if is_remote(root):
        from pyarrow.fs import FileType

        info = request(root, lambda store, key: store.get_file_info(key.partition("/")[0]))
        return info.type is not FileType.NotFound
    try:
        with os.scandir(root) as entries:
            return next(entries, None) is not None
    except (FileNotFoundError, NotADirectoryError):
        return False


def is_waiting() -> bool:
    """Return True if a read of this process waits for storage."""
    return bool(_waiting)


def note_waits_in(folder: Path | None) -> None:
    """Write reports of this process's waits below ``folder`` from now on; None: log them."""
    global _folder
    _folder = folder and folder / FOLDER


def read_waits(folder: Path) -> dict[str, WaitNote]:
    """Return the reports of waiting processes below ``folder``, by process."""
    notes = {}
    with contextlib.suppress(OSError):
        for path in (folder / FOLDER).glob("*.json"):
            with contextlib.suppress(OSError, ValueError, TypeError):
                notes[path.stem] = WaitNote(**json.loads(path.read_text(encoding="utf-8")))
    return notes


def forget_waits(folder: Path) -> None:
    """Remove the reports below ``folder``; a process that still waits writes its report again."""
    with contextlib.suppress(OSError):
        for path in (folder / FOLDER).glob("*.json"):
            path.unlink(missing_ok=True)


class StorageWait:
    """The wait of one read: a context manager; call :meth:`failed` after each failed try.

    Args:
        path: the file.
        began: ``time.monotonic()`` at the beginning of the read.
        timeout_s: time limit from then on.
    """

    def __init__(self, path: str, began: float, timeout_s: float) -> None:
        self._path, self._began, self._timeout = path, began, timeout_s
        self._tries, self._pause = 0, probes.FIRST_PAUSE_S
        self._shared, self._has_turn = probes.probes_of(path), False

    def __enter__(self) -> StorageWait:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        if kind is None or (issubclass(kind, Exception) and not issubclass(kind, StorageError)):
            self._shared.succeeded()  # also if the file is bad: the store says so, or other files can be read
        elif self._has_turn:
            self._shared.failed()
        with _lock:
            _waiting.pop(threading.get_ident(), None)
            if not _waiting and _folder is not None:
                with contextlib.suppress(OSError):
                    _note_path().unlink(missing_ok=True)

    def failed(self, error: OSError) -> None:
        """Report ``error`` and pause. If credentials were refused, they are read again.

        Raises:
            StorageError: the time limit is exceeded.
        """
        self._tries += 1
        answer = error.strerror or " ".join(str(error).split())
        now = time.monotonic()
        seconds, until = now - self._began, self._began + self._timeout
        if now >= until:
            raise StorageError(
                f"{self._path} could not be read for {seconds:.0f} s; the storage's last answer: {answer}",
                where="dataset.storage_timeout_s",
                hint="Repair the storage (its mount, network or credentials) and run the same command again: it "
                "continues from the last checkpoint.",
            )
        if credentials_refused(error):
            renew_clients()
        self._note(WaitNote(self._path, answer, round(seconds, 1), self._tries))
        if may_be_of_one_file(self._path, error):  # no other read may depend on this one's tries
            if self._has_turn:
                self._shared.failed()
            self._has_turn = False
            self._shared.wait_alone(min(now + probes.jittered(self._pause), until))
            self._pause = min(2 * self._pause, probes.LONGEST_PAUSE_ALONE_S)
        else:
            self._has_turn = self._shared.wait(self._has_turn, until)
        waited()

    def _note(self, note: WaitNote) -> None:
        with _lock:
            first = not _waiting
            _waiting[threading.get_ident()] = self
            if _folder is None:
                if first:
                    _logger.warning("waiting for storage: %s cannot be read: %s", note.path, note.answer)
                return
            with contextlib.suppress(OSError):
                path = _note_path()
                path.parent.mkdir(parents=True, exist_ok=True)
                aside = path.with_suffix(".aside")
                aside.write_text(json.dumps(asdict(note)), encoding="utf-8")
                os.replace(aside, path)


def _note_path() -> Path:
    assert _folder is not None
    return _folder / f"{socket.gethostname()}-{os.getpid()}.json"
