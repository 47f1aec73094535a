"""The bytes of one sample, or why it cannot be had: bad data is told from storage that fails, which is waited for."""

from __future__ import annotations

import contextlib
import contextvars
import errno
import hashlib
import queue
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from radioplat.data.images.decode import BadSample
from radioplat.data.index.shard_index import ShardIndex
from radioplat.data.storage.files import HandlePool, read_range, stat_file
from radioplat.data.storage.outage import StorageWait, is_gone, may_be_of_one_file, root_is_there
from radioplat.data.storage.retry import tried_once
from radioplat.errors import DataError
from radioplat.spec.schema.dataset import DatasetConfig

HOLD_OFF_S = 30.0  # a shard that is bad data is left alone for so long: not every sample of it asks again
STALLS = 10  # and one that was given up for so many timeouts, by every process that reads the run's index
_LOOK_BYTES = 512  # of another shard, to see whether the store answers
Result = TypeVar("Result")


class Place(NamedTuple):
    """Where a sample lies: its shard, and first byte and number of bytes in it."""

    shard: int
    offset: int
    length: int


class Fetcher:
    """Reads samples by offset; thread-safe, and pickles without its open files.

    A read that the storage fails is tried again until it answers. A shard is given up, as bad data, where it alone
    fails: for ``timeout_s`` other shards of its source could be read, and it could not.

    Args:
        index: the run's copy. A shard that is given up is marked beside it.
        timeout_s: after how long a read hangs; None where that is not judged.
        careful: give up on a read that hangs. Each takes a thread of its own, which is left behind where it does.
        storage_timeout_s: for how long storage that fails is waited for.
    """

    def __init__(
        self,
        index: ShardIndex,
        timeout_s: float | None = None,
        careful: bool = False,
        storage_timeout_s: float = DatasetConfig.storage_timeout_s,
    ) -> None:
        self._index, self._timeout, self._careful = index, timeout_s, careful
        self._storage_timeout = storage_timeout_s
        self._files = HandlePool()
        self._held_off: dict[int, tuple[float, BadSample]] = {}

    def as_careful(self) -> Fetcher:
        """The same, with ``careful``."""
        return Fetcher(self._index, self._timeout, True, self._storage_timeout)

    def places(self, rows: np.ndarray) -> list[Place]:
        """Where each of ``rows``, int64 ``[n]``, lies: together they are looked up much faster than one by one."""
        index = self._index
        columns = (index.shard[rows], index.offset[rows], index.length[rows])
        return [Place(*place) for place in zip(*(column.tolist() for column in columns), strict=True)]

    def bytes_of(self, row: int) -> bytes:
        """The encoded image of ``row``; raises as :meth:`read`."""
        return self.read(self.places(np.array([row]))[0])

    def read(self, place: Place) -> bytes:
        """The encoded image at ``place``; waits for storage that fails.

        Raises:
            BadSample: ``shard_changed`` (or is gone) since it was indexed; ``short_read`` where the shard ends too
                early, or where it alone could not be read for ``timeout_s``.
            StorageError: the storage did not answer for ``storage_timeout_s``.
        """
        until, known = self._held_off.get(place.shard, (0.0, None))
        if known is not None and time.monotonic() < until:
            raise BadSample(known.reason, known.detail)
        if self._given_up(place.shard):
            raise self._hold_off(place.shard, BadSample("short_read", f"no answer within {self._timeout:g} s"))
        began = time.monotonic()
        try:
            return self._whole(place)
        except OSError as error:
            return self._wait_for(place, began, error)

    def check_hash(self, row: int, data: bytes) -> None:
        """Compare ``data`` with the sidecar's sha256 or md5 of ``row``; another kind of hash is not judged.

        Raises:
            BadSample: ``hash_mismatch``.
        """
        known = (self._index.texts([row], "hash")[0] or "").lower()
        name = {64: "sha256", 32: "md5"}.get(len(known))
        if name and (found := hashlib.new(name, data, usedforsecurity=False).hexdigest()) != known:
            raise BadSample("hash_mismatch", f"{name} {found[:12]}, the sidecar says {known[:12]}")

    def _whole(self, place: Place) -> bytes:
        """One try.

        Raises:
            BadSample: what the shard is now says that the data is bad.
            OSError: the storage fails.
        """
        shard, offset, length = place
        try:
            data = self._in_time(lambda: self._read(shard, offset, length))
            if len(data) == length:
                return data
            size = self._in_time(lambda: stat_file(self._index.shard_paths[shard])).size
        except DataError as error:
            raise self._hold_off(shard, BadSample("shard_changed", error.problems[0].message)) from None
        except OSError as error:
            if is_gone(error) and self._in_time(lambda: self._is_lost(shard)):
                raise self._hold_off(shard, BadSample("shard_changed", f"gone: {error.strerror}")) from None
            raise
        if size >= offset + length:
            self._files.drop(self._index.shard_paths[shard])
            raise OSError(errno.EIO, f"a read ended after {len(data)} of {length} bytes, in the middle of the file")
        raise BadSample("short_read", f"{len(data)} of {length} bytes")

    def _read(self, shard: int, offset: int, length: int) -> bytes:
        path = self._index.shard_paths[shard]
        handle = self._files.get(path, lambda opened: self._index.check_shard(shard, opened.state))
        try:
            return handle.read(offset, length)
        except OSError:
            # A handle may be what is broken (a stale one of NFS, a closed connection): the next read opens anew.
            self._files.drop(path)
            raise

    def _wait_for(self, place: Place, began: float, error: OSError) -> bytes:
        """Try until the storage answers."""
        path, alone_since = self._index.shard_paths[place.shard], None
        patience = DatasetConfig.read_timeout_s if self._timeout is None else self._timeout
        with StorageWait(path, began, self._storage_timeout) as wait, tried_once():
            while True:
                wait.failed(error)
                # Looked at before the try: were it after it, a store that came back between them would look like a
                # shard that fails alone.
                alone = may_be_of_one_file(path, error) and self._others_can_be_read(place.shard)
                alone_since = (alone_since or time.monotonic()) if alone else None
                try:
                    return self._whole(place)
                except OSError as again:
                    error = again
                if alone_since is not None and time.monotonic() - alone_since >= patience:
                    with contextlib.suppress(OSError):
                        if (mark := self._mark(place.shard)) is not None:
                            mark.touch()
                    raise self._hold_off(place.shard, BadSample("short_read", _strerror(error)))

    def _is_lost(self, shard: int) -> bool:
        """Whether a shard that was not found is gone while the folder or bucket of its source is there."""
        if not root_is_there(self._index.shards["root"][shard].as_py()):
            return False
        try:
            stat_file(self._index.shard_paths[shard])  # again: the folder may have come back with it
        except FileNotFoundError:
            return True
        return False

    def _others_can_be_read(self, shard: int) -> bool:
        """Whether another shard of the source can be read now."""
        source = self._index.shards_of(self._index.shards["source"][shard].as_py())
        others = [other for other in source if other != shard]
        if not others:
            return False
        other = random.choice(others)
        size = self._index.shards["size"][other].as_py()
        place = random.randrange(max(1, size - _LOOK_BYTES))  # mostly not what a cache of this machine holds
        try:
            seconds = DatasetConfig.read_timeout_s if self._timeout is None else self._timeout
            return bool(_within(seconds, lambda: read_range(self._index.shard_paths[other], place, _LOOK_BYTES)))
        except OSError:
            return False

    def _in_time(self, action: Callable[[], Result]) -> Result:
        return _within(self._timeout, action) if self._careful else action()

    def _hold_off(self, shard: int, bad: BadSample) -> BadSample:
        self._held_off[shard] = (time.monotonic() + HOLD_OFF_S, bad)
        return bad

    def _given_up(self, shard: int) -> bool:
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

    def __reduce__(self):
        return (Fetcher, (self._index, self._timeout, self._careful, self._storage_timeout))


def _within(seconds: float | None, action: Callable[[], Result]) -> Result:
    """The result of ``action``, in a thread that is left behind where it takes longer.

    Raises:
        TimeoutError: it did.
    """
    results: list[Result] = []
    ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def run() -> None:
        try:
            results.append(action())
            ended.put(None)
        except BaseException as error:
            ended.put(error)

    threading.Thread(target=contextvars.copy_context().run, args=(run,), name="fetch", daemon=True).start()
    try:
        error = ended.get(timeout=seconds)
    except queue.Empty:
        raise _late(seconds or 0.0) from None
    if error is not None:
        raise error
    return results[0]


def _late(seconds: float) -> TimeoutError:
    return TimeoutError(errno.ETIMEDOUT, f"no answer within {seconds:g} s")


def _strerror(error: OSError) -> str:
    return error.strerror or " ".join(str(error).split())
