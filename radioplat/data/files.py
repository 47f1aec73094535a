"""The one place where the data room touches storage: state of a file, bytes of a range, a bounded pool of handles."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import BinaryIO, NamedTuple


class FileState(NamedTuple):
    """What tells one version of a file from another: its size in bytes and its modification time in nanoseconds."""

    size: int
    mtime_ns: int


def stat_file(path: str) -> FileState:
    """State of the file at ``path``.

    Raises:
        OSError: it is missing or may not be read.
    """
    found = os.stat(path)
    return FileState(found.st_size, found.st_mtime_ns)


def open_stream(path: str) -> BinaryIO:
    """A seekable binary stream; the caller closes it."""
    return open(path, "rb")


class RangeFile:
    """An open file that is read by offset, from any thread; it closes when the last reference goes."""

    def __init__(self, path: str) -> None:
        self._fd = -1
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        found = os.fstat(self._fd)
        self.state = FileState(found.st_size, found.st_mtime_ns)

    def read(self, offset: int, length: int) -> bytes:
        """``length`` bytes from ``offset``; fewer only where the file ends."""
        parts = []
        while length > 0 and (part := os.pread(self._fd, length, offset)):
            parts.append(part)
            offset, length = offset + len(part), length - len(part)
        return b"".join(parts) if len(parts) != 1 else parts[0]

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


def read_range(path: str, offset: int, length: int) -> bytes:
    """``length`` bytes of the file at ``path`` from ``offset``; fewer only where the file ends."""
    return RangeFile(path).read(offset, length)


class HandlePool:
    """At most ``limit`` open files, least recently used dropped first. Thread-safe; pickles without its handles."""

    def __init__(self, limit: int = 64) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._open: OrderedDict[str, RangeFile] = OrderedDict()

    def get(self, path: str, check: Callable[[RangeFile], None]) -> RangeFile:
        """The handle for ``path``; ``check`` sees a newly opened file before anyone reads it.

        A handle that is dropped here while another thread reads from it stays open until that thread lets go.
        """
        with self._lock:
            handle = self._open.get(path)
            if handle is not None:
                self._open.move_to_end(path)
                return handle
        handle = RangeFile(path)
        check(handle)
        with self._lock:
            self._open[path] = handle
            while len(self._open) > self._limit:
                self._open.popitem(last=False)
        return handle

    def __contains__(self, path: str) -> bool:
        return path in self._open

    def drop(self, path: str) -> None:
        """Forget the handle for ``path``: the next :meth:`get` opens the file again."""
        with self._lock:
            self._open.pop(path, None)

    def __len__(self) -> int:
        return len(self._open)

    def __reduce__(self):
        return (HandlePool, (self._limit,))
