"""The one place where the data room touches storage: folders, states of files, bytes of a range, a pool of handles,
whole files written and removed.

Paths are local, or ``s3://bucket/key`` and ``gs://bucket/key`` (pyarrow's own clients). Nothing is ever read but the
range that is asked for. An error that may pass is tried again with growing pauses, a bounded number of times.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from radioplat.common.atomic_files import written_aside
from radioplat.data.storage.object_stores import filesystem, strip_scheme
from radioplat.data.storage.retry import retried
from radioplat.spec.resolved.paths import is_remote

_PIECE = 2**23  # bytes of a file that are copied at a time


class FileState(NamedTuple):
    """What tells one version of a file from another: its size in bytes and its modification time in nanoseconds.

    Object stores tell the time in whole seconds when asked for one object, so theirs is cut to that.
    """

    size: int
    mtime_ns: int


class _Source(Protocol):
    """Bytes by offset, from any thread."""

    state: FileState

    def read(self, offset: int, length: int) -> bytes:
        """``length`` bytes from ``offset``; fewer at the end of the file.

        Raises:
            OSError: it cannot be read.
        """
        ...


def stat_file(path: str) -> FileState:
    """State of the file at ``path``.

    Raises:
        OSError: it is missing or may not be read.
    """
    return retried(lambda: _stat(path), path)


def absolute(path: str) -> str:
    """``path`` with ``~`` and relative parts resolved; a remote one without a trailing slash."""
    return path.rstrip("/") if is_remote(path) else os.path.abspath(os.path.expanduser(path))


def list_files(root: str, wanted: Callable[[str], bool]) -> list[tuple[str, FileState]]:
    """Every file below ``root`` whose name ``wanted`` accepts, by its path below ``root``, sorted by it.

    Links are followed, each folder once so that a circle of links ends. Names that start with a dot, and all below
    such folders, are left out.

    Raises:
        FileNotFoundError, NotADirectoryError: there is no such folder.
        OSError: it cannot be read.
    """
    walk = _walk_remote if is_remote(root) else _walk_local
    return retried(lambda: sorted(walk(root, wanted)), root)


class RangeFile:
    """An open file that is read by offset, from any thread; it closes when the last reference goes."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._source = retried(lambda: _open(path), path)
        self.state = self._source.state

    def read(self, offset: int, length: int) -> bytes:
        """``length`` bytes from ``offset``; fewer only where the file ends."""
        try:
            return self._source.read(offset, length)  # what nearly always is enough, without ceremony
        except OSError:
            return retried(lambda: self._open_anew().read(offset, length), self._path)

    def _open_anew(self) -> _Source:
        """The handle may be what is broken: a stale one of NFS, a closed connection, expired credentials.

        Raises:
            OSError: it cannot be opened, or is another file now.
        """
        source = _open(self._path)
        if source.state != self.state:
            raise OSError(errno.ESTALE, "the file was replaced while it was open", self._path)
        self._source = source
        return source


def read_range(path: str, offset: int, length: int) -> bytes:
    """``length`` bytes of the file at ``path`` from ``offset``; fewer only where the file ends."""
    return RangeFile(path).read(offset, length)


def write_file(path: str, data: bytes) -> None:
    """Write a whole file, in a folder that is made where there is none: readers see all of it or nothing.

    Raises:
        OSError: it cannot be written.
    """
    retried(lambda: _write(path, data), path)


def copy_file(source: str, target: str) -> None:
    """Copy a whole file, each side local or remote, in pieces. A local target is on the disk when this returns.

    Readers of a local target see all of it or nothing. An object may end too early where the source failed: its
    readers need a checksum.

    Raises:
        OSError: one of the two cannot be used.
    """
    retried(lambda: _copy(source, target), target)


def remove_file(path: str) -> None:
    """Remove a file; one that is gone already is no error.

    Raises:
        OSError: it may not be removed.
    """
    with contextlib.suppress(FileNotFoundError):
        if is_remote(path):
            retried(lambda: filesystem(path).delete_file(strip_scheme(path)), path)
        else:
            os.unlink(path)


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


class _Local:
    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._fd)  # unlike __del__ it runs before the interpreter takes os apart
        self.state = _state(os.fstat(self._fd))

    def read(self, offset: int, length: int) -> bytes:
        """As :class:`_Source`'s; also where the system gives less than was asked for."""
        data = os.pread(self._fd, length, offset)
        if len(data) == length or not data:
            return data
        parts, got = [data], len(data)
        while got < length and (part := os.pread(self._fd, length - got, offset + got)):
            parts.append(part)
            got += len(part)
        return b"".join(parts)


class _Remote:
    def __init__(self, path: str) -> None:
        self.state = _stat(path)
        self._file = filesystem(path).open_input_file(strip_scheme(path))

    def read(self, offset: int, length: int) -> bytes:
        """As :class:`_Source`'s."""
        length = min(length, self.state.size - offset)  # a range that starts behind the end is an error there
        return self._file.read_at(length, offset) if length > 0 else b""


def _open(path: str) -> _Source:
    return _Remote(path) if is_remote(path) else _Local(path)


def _stat(path: str) -> FileState:
    if not is_remote(path):
        return _state(os.stat(path))
    found = filesystem(path).get_file_info(strip_scheme(path))
    if not found.is_file:
        raise FileNotFoundError(2, "No such object", path)
    return _remote_state(found)


def _write(path: str, data: bytes) -> None:
    if is_remote(path):
        with filesystem(path).open_output_stream(strip_scheme(path)) as stream:  # an object is there once it is closed
            stream.write(data)
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with written_aside(path) as aside:
        aside.write_bytes(data)


def _copy(source: str, target: str) -> None:
    with contextlib.ExitStack() as stack:
        if is_remote(source):
            reading = stack.enter_context(filesystem(source).open_input_stream(strip_scheme(source)))
        else:
            reading = stack.enter_context(open(source, "rb"))
        if is_remote(target):
            writing = stack.enter_context(filesystem(target).open_output_stream(strip_scheme(target)))
            shutil.copyfileobj(reading, writing, _PIECE)
            return
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with written_aside(target) as aside, open(aside, "wb") as writing:
            shutil.copyfileobj(reading, writing, _PIECE)
            writing.flush()
            os.fsync(writing.fileno())


def _state(found: os.stat_result) -> FileState:
    return FileState(found.st_size, found.st_mtime_ns)


def _remote_state(found) -> FileState:
    return FileState(found.size, (found.mtime_ns or 0) // 1_000_000_000 * 1_000_000_000)


def _walk_local(root: str, wanted: Callable[[str], bool]) -> Iterator[tuple[str, FileState]]:
    seen: set[tuple[int, int]] = set()
    folders = [("", root)]
    while folders:
        prefix, folder = folders.pop()
        found = os.stat(folder)
        if (found.st_dev, found.st_ino) in seen:
            continue
        seen.add((found.st_dev, found.st_ino))
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda e: e.name):
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    folders.append((f"{prefix}{entry.name}/", entry.path))
                elif entry.is_file() and wanted(entry.name):
                    yield prefix + entry.name, _state(entry.stat())


def _walk_remote(root: str, wanted: Callable[[str], bool]) -> Iterator[tuple[str, FileState]]:
    from pyarrow.fs import FileSelector

    base = strip_scheme(root)
    for found in filesystem(root).get_file_info(FileSelector(base, recursive=True)):
        name = found.path[len(base) :].lstrip("/")
        hidden = any(part.startswith(".") for part in name.split("/"))
        if found.is_file and not hidden and wanted(name):
            yield name, _remote_state(found)
