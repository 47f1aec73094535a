"""Access to files, local or in object stores: list folders, read ranges, write, copy and remove whole files.

All storage access of the data package goes through this module. Paths are local, or ``s3://bucket/key`` and
``gs://bucket/key`` (pyarrow's clients). Only the requested range is read. Errors that may be temporary are retried with
growing pauses, a limited number of times.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, Protocol

from pyarrow.fs import FileSystem

from radioplat.common.atomic_files import written_aside
from radioplat.data.storage.object_stores import request, strip_scheme
from radioplat.data.storage.request_rate import paced, throttles
from radioplat.data.storage.retry import retried
from radioplat.spec.resolved.paths import is_remote

_PIECE = 2**23  # bytes per read of a copy
_KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}


class FileState(NamedTuple):
    """Identifies a version of a file: size in bytes and modification time in nanoseconds.

    Object stores report whole seconds for single objects, so their times are rounded down to that.
    """

    size: int
    mtime_ns: int


class _Source(Protocol):
    """A file that is read by offset, from any thread."""

    state: FileState

    def read(self, offset: int, length: int) -> bytes:
        """Return ``length`` bytes from ``offset``; fewer at the end of the file.

        Raises:
            OSError: it cannot be read.
        """
        ...


def stat_file(path: str) -> FileState:
    """Return the state of the file at ``path``.

    Raises:
        OSError: it is missing or may not be read.
    """
    return retried(lambda: _stat(path), path)


def not_a_file(path: str) -> str:
    """Return what the local ``path`` is if it is no regular file: ``a folder``, ``a pipe``, ``a socket``, ``a device``;
    "" for a file, and for an object.

    A pipe must not be opened: that waits until another process writes to it.

    Raises:
        OSError: it is missing or may not be read.
    """
    mode = stat.S_IFREG if is_remote(path) else os.stat(path).st_mode
    return _KINDS.get(stat.S_IFMT(mode), "" if stat.S_ISREG(mode) else "a device")


def absolute(path: str) -> str:
    """Return ``path`` with ``~`` and relative parts resolved; a remote one without a trailing slash."""
    return path.rstrip("/") if is_remote(path) else os.path.abspath(os.path.expanduser(path))


def list_files(root: str, wanted: Callable[[str], bool]) -> list[tuple[str, FileState]]:
    """Return path below ``root`` and state of every file whose name ``wanted`` accepts, sorted by path.

    Links are followed, but each folder is visited once, so circular links end. Files and folders whose names start
    with a dot are skipped.

    Raises:
        FileNotFoundError, NotADirectoryError: there is no such folder.
        OSError: it cannot be read.
    """
    walk = _walk_remote if is_remote(root) else _walk_local
    return retried(lambda: sorted(walk(root, wanted)), root)


class RangeFile:
    """An open file that is read by offset, from any thread; closed with its last reference."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._source = retried(lambda: _open(path), path)
        self.state = self._source.state

    def read(self, offset: int, length: int) -> bytes:
        """Return ``length`` bytes from ``offset``; fewer only at the end of the file."""
        try:
            return self._source.read(offset, length)  # the fast path: it nearly always succeeds
        except OSError as error:
            return retried(partial(self._again, offset, length, [throttles(error)]), self._path)

    def _again(self, offset: int, length: int, whole: list[bool]) -> bytes:
        """Read after an error; ``whole`` has one item, whether the handle can still be used: the store throttled."""
        source = self._source if whole[0] else self._open_anew()
        try:
            return source.read(offset, length)
        except OSError as error:
            whole[0] = throttles(error)
            raise

    def _open_anew(self) -> _Source:
        """Open the file again: the handle may be broken (stale on NFS, a closed connection, expired credentials).

        Raises:
            OSError: it cannot be opened, or is another file now.
        """
        source = _open(self._path)
        if source.state != self.state:
            raise OSError(errno.ESTALE, "the file was replaced while it was open", self._path)
        self._source = source
        return source


def read_range(path: str, offset: int, length: int) -> bytes:
    """Return ``length`` bytes of the file at ``path`` from ``offset``; fewer only at the end of the file."""
    return RangeFile(path).read(offset, length)


def write_file(path: str, data: bytes) -> None:
    """Write a whole file atomically; missing parent folders are created.

    Raises:
        OSError: it cannot be written.
    """
    retried(lambda: _write(path, data), path)


def copy_file(source: str, target: str) -> None:
    """Copy a whole file between local or remote paths.

    A local target is written atomically and synced to disk. A remote target may be incomplete if the source failed, so
    its readers need a checksum.

    Raises:
        OSError: source or target cannot be used.
    """
    retried(lambda: _copy(source, target), target)


def remove_file(path: str) -> None:
    """Remove a file; a missing one is no error.

    Raises:
        OSError: it may not be removed.
    """
    with contextlib.suppress(FileNotFoundError):
        if is_remote(path):
            retried(lambda: request(path, lambda store, key: store.delete_file(key)), path)
        else:
            os.unlink(path)


class HandlePool:
    """Cache of at most ``limit`` open files, least recently used. Thread-safe; pickled without its handles."""

    def __init__(self, limit: int = 64) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._open: OrderedDict[str, RangeFile] = OrderedDict()

    def get(self, path: str, check: Callable[[RangeFile], None]) -> RangeFile:
        """Return the handle for ``path``; ``check`` is called with a newly opened file before it is read.

        A handle that is evicted while another thread reads from it stays open until that thread is done.
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
        """Remove the handle for ``path``, so that the next :meth:`get` opens the file again."""
        with self._lock:
            self._open.pop(path, None)

    def __len__(self) -> int:
        return len(self._open)

    def __reduce__(self):
        return (HandlePool, (self._limit,))


class _Local:
    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._fd)  # unlike __del__, it runs before interpreter shutdown
        self.state = _state(os.fstat(self._fd))

    def read(self, offset: int, length: int) -> bytes:
        """See :class:`_Source`; continues if the system returns fewer bytes."""
        data = os.pread(self._fd, length, offset)
        if len(data) == length or not data:
            return data
        parts, size = [data], len(data)
        while size < length and (part := os.pread(self._fd, length - size, offset + size)):
            parts.append(part)
            size += len(part)
        return b"".join(parts)


class _Remote:
    def __init__(self, path: str) -> None:
        self.state = _stat(path)
        self._path = path
        self._file = request(path, lambda store, key: store.open_input_file(key))

    def read(self, offset: int, length: int) -> bytes:
        """See :class:`_Source`."""
        length = min(length, self.state.size - offset)  # the client rejects ranges that start after the end
        return paced(self._path, lambda: self._file.read_at(length, offset)) if length > 0 else b""


def _open(path: str) -> _Source:
    return _Remote(path) if is_remote(path) else _Local(path)


def _stat(path: str) -> FileState:
    if not is_remote(path):
        return _state(os.stat(path))
    info = request(path, lambda store, key: store.get_file_info(key))
    if not info.is_file:
        raise FileNotFoundError(2, "No such object", path)
    return _remote_state(info)


def _write(path: str, data: bytes) -> None:
    if is_remote(path):
        request(path, lambda store, key: _put(store, key, data))
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with written_aside(path) as aside:
        aside.write_bytes(data)


def _put(store: FileSystem, key: str, data: bytes) -> None:
    with store.open_output_stream(key) as stream:  # the object appears when it is closed
        stream.write(data)


def _copy(source: str, target: str) -> None:
    with contextlib.ExitStack() as stack:
        if is_remote(source):
            reading = stack.enter_context(request(source, lambda store, key: store.open_input_stream(key)))
        else:
            reading = stack.enter_context(open(source, "rb"))
        if is_remote(target):
            writing = stack.enter_context(request(target, lambda store, key: store.open_output_stream(key)))
            shutil.copyfileobj(reading, writing, _PIECE)
            return
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with written_aside(target) as aside, open(aside, "wb") as writing:
            shutil.copyfileobj(reading, writing, _PIECE)
            writing.flush()
            os.fsync(writing.fileno())


def _state(result: os.stat_result) -> FileState:
    return FileState(result.st_size, result.st_mtime_ns)


def _remote_state(info) -> FileState:
    return FileState(info.size, (info.mtime_ns or 0) // 1_000_000_000 * 1_000_000_000)


def _walk_local(root: str, wanted: Callable[[str], bool]) -> Iterator[tuple[str, FileState]]:
    visited: set[tuple[int, int]] = set()
    folders = [("", root)]
    while folders:
        prefix, folder = folders.pop()
        state = os.stat(folder)
        if (state.st_dev, state.st_ino) in visited:
            continue
        visited.add((state.st_dev, state.st_ino))
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
    for info in request(root, lambda store, key: store.get_file_info(FileSelector(key, recursive=True))):
        name = info.path[len(base) :].lstrip("/")
        hidden = any(part.startswith(".") for part in name.split("/"))
        if info.is_file and not hidden and wanted(name):
            yield name, _remote_state(info)
