"""The bytes of one sample, or why it cannot be had: nothing that storage does ends a run by itself."""

from __future__ import annotations

import errno
import hashlib
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from radioplat.data.decode import BadSample
from radioplat.data.files import HandlePool
from radioplat.data.shard_index import ShardIndex
from radioplat.errors import DataError

HOLD_OFF_S = 30.0  # a shard that failed is left alone for so long: not every sample of it waits for the same error
STALLS = 10  # and one that hung for so many timeouts, by every process that reads the run's index


class Place(NamedTuple):
    """Where a sample lies: its shard, and first byte and number of bytes in it."""

    shard: int
    offset: int
    length: int


class Fetcher:
    """Reads samples by offset; thread-safe, and pickles without its open files.

    Args:
        index: the run's copy. A shard that hung is marked beside it.
        timeout_s: after how long a read hangs; None where that is not judged.
        careful: give up on a read that hangs. Each takes a thread of its own, which is left behind where it does.
    """

    def __init__(self, index: ShardIndex, timeout_s: float | None = None, careful: bool = False) -> None:
        self._index, self._timeout, self._careful = index, timeout_s, careful
        self._files = HandlePool()
        self._held_off: dict[int, tuple[float, BadSample]] = {}

    def places(self, rows: np.ndarray) -> list[Place]:
        """Where each of ``rows``, int64 ``[n]``, lies: together they are looked up much faster than one by one."""
        index = self._index
        columns = (index.shard[rows], index.offset[rows], index.length[rows])
        return [Place(*place) for place in zip(*(column.tolist() for column in columns), strict=True)]

    def bytes_of(self, row: int) -> bytes:
        """The encoded image of ``row``; raises as :meth:`read`."""
        return self.read(self.places(np.array([row]))[0])

    def read(self, place: Place) -> bytes:
        """The encoded image at ``place``.

        Raises:
            BadSample: ``shard_changed`` (or is gone) since it was indexed; ``short_read`` where the storage fails, ends
                too early, or does not answer in time.
        """
        shard, offset, length = place
        until, known = self._held_off.get(shard, (0.0, None))
        if known is not None and time.monotonic() < until:
            raise BadSample(known.reason, known.detail)
        try:
            if self._hung(shard):
                raise self._late()
            data = self._in_time(shard, lambda: self._read(shard, offset, length))
        except DataError as error:
            raise self._hold_off(shard, BadSample("shard_changed", error.problems[0].message)) from None
        except FileNotFoundError as error:
            raise self._hold_off(shard, BadSample("shard_changed", f"gone: {error.strerror}")) from None
        except OSError as error:
            raise self._hold_off(shard, BadSample("short_read", error.strerror or str(error))) from None
        if len(data) != length:
            raise BadSample("short_read", f"{len(data)} of {length} bytes")
        return data

    def check_hash(self, row: int, data: bytes) -> None:
        """Compare ``data`` with the sidecar's sha256 or md5 of ``row``; another kind of hash is not judged.

        Raises:
            BadSample: ``hash_mismatch``.
        """
        known = (self._index.texts([row], "hash")[0] or "").lower()
        name = {64: "sha256", 32: "md5"}.get(len(known))
        if name and (found := hashlib.new(name, data, usedforsecurity=False).hexdigest()) != known:
            raise BadSample("hash_mismatch", f"{name} {found[:12]}, the sidecar says {known[:12]}")

    def _read(self, shard: int, offset: int, length: int) -> bytes:
        path = self._index.shard_paths[shard]
        handle = self._files.get(path, lambda opened: self._index.check_shard(shard, opened.state))
        try:
            return handle.read(offset, length)
        except OSError:
            # A handle may be what is broken (a stale one of NFS, a closed connection): the next read opens anew.
            self._files.drop(path)
            raise

    def _in_time(self, shard: int, read: Callable[[], bytes]) -> bytes:
        if not self._careful:
            return read()
        box: queue.SimpleQueue[bytes | BaseException] = queue.SimpleQueue()

        def run() -> None:
            try:
                box.put(read())
            except BaseException as error:
                box.put(error)

        threading.Thread(target=run, name="fetch", daemon=True).start()
        try:
            found = box.get(timeout=self._timeout)
        except queue.Empty:
            if (mark := self._mark(shard)) is not None:
                mark.touch()
            raise self._late() from None
        if isinstance(found, BaseException):
            raise found
        return found

    def _hold_off(self, shard: int, bad: BadSample) -> BadSample:
        self._held_off[shard] = (time.monotonic() + HOLD_OFF_S, bad)
        return bad

    def _hung(self, shard: int) -> bool:
        """Whether a process gave up on ``shard`` lately; asked where this one would have to open it."""
        if self._timeout is None or self._index.shard_paths[shard] in self._files:
            return False
        try:
            mark = self._mark(shard)
            return mark is not None and time.time() - mark.stat().st_mtime < STALLS * self._timeout
        except OSError:
            return False

    def _mark(self, shard: int) -> Path | None:
        return self._index.directory and self._index.directory / f".hung-{shard}"

    def _late(self) -> TimeoutError:
        return TimeoutError(errno.ETIMEDOUT, f"no answer within {self._timeout:g} s")

    def __reduce__(self):
        return (Fetcher, (self._index, self._timeout, self._careful))
