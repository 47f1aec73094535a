"""Read the bytes of samples; distinguish bad data, which is skipped, from failing storage, which is waited for."""

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

HOLD_OFF_S = 30.0  # time during which a bad shard is not tried again for other samples
STALLS = 10  # the same for a shard that was given up, in read timeouts, for all processes of the run
_LOOK_BYTES = 512  # bytes to read of another shard, to see whether the store answers
Result = TypeVar("Result")


class Place(NamedTuple):
    """Location of a sample: shard, offset and length in bytes."""

    shard: int
    offset: int
    length: int


class Fetcher:
    """Reads samples by offset; thread-safe, and pickled without its open files.

    A read that fails is retried until the storage answers. If for ``timeout_s`` other shards of the source can be read
    and this one cannot, the shard is given up as bad data.

    Args:
        index: the run's copy; shards that are given up are marked in its folder.
        timeout_s: time after which a read hangs; None: never.
        careful: end reads that hang. Each read then runs in its own thread, which is abandoned if it hangs.
        storage_timeout_s: time to wait for failing storage.
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
        """Return a copy with ``careful`` set."""
        return Fetcher(self._index, self._timeout, True, self._storage_timeout)

    def places(self, rows: np.ndarray) -> list[Place]:
        """Return the locations of ``rows`` (int64 ``[n]``); much faster than one call per row."""
        index = self._index
        columns = (index.shard[rows], index.offset[rows], index.length[rows])
        return [Place(*place) for place in zip(*(column.tolist() for column in columns), strict=True)]

    def bytes_of(self, row: int) -> bytes:
        """Return the encoded image of ``row``; raises as :meth:`read`."""
        return self.read(self.places(np.array([row]))[0])

    def read(self, place: Place) -> bytes:
        """Return the encoded image at ``place``; wait for failing storage.

        Raises:
            BadSample: ``shard_changed``: the shard was changed or removed after indexing; ``short_read``: it ends too
                early, or it alone could not be read for ``timeout_s``.
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
        """Compare ``data`` with the sidecar's sha256 or md5 of ``row``; other kinds of hashes are ignored.

        Raises:
            BadSample: ``hash_mismatch``.
        """
        known = (self._index.texts([row], "hash")[0] or "").lower()
        name = {64: "sha256", 32: "md5"}.get(len(known))
        if name and (actual := hashlib.new(name, data, usedforsecurity=False).hexdigest()) != known:
            raise BadSample("hash_mismatch", f"{name} {actual[:12]}, in the sidecar {known[:12]}")

    def _whole(self, place: Place) -> bytes:
        """Try once to read the bytes at ``place``.

        Raises:
            BadSample: the state of the shard shows that the data is bad.
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
            # The handle may be broken (stale on NFS, a closed connection): the next read opens the file again.
            self._files.drop(path)
            raise

    def _wait_for(self, place: Place, began: float, error: OSError) -> bytes:
        """Retry until the storage answers."""
        path, alone_since = self._index.shard_paths[place.shard], None
        timeout = DatasetConfig.read_timeout_s if self._timeout is None else self._timeout
        with StorageWait(path, began, self._storage_timeout) as wait, tried_once():
            while True:
                wait.failed(error)
                # Checked before the try: afterwards, a store that recovered in between would look like a shard that
                # fails alone.
                alone = may_be_of_one_file(path, error) and self._others_can_be_read(place.shard)
                alone_since = (alone_since or time.monotonic()) if alone else None
                try:
                    return self._whole(place)
                except OSError as again:
                    error = again
                if alone_since is not None and time.monotonic() - alone_since >= timeout:
                    with contextlib.suppress(OSError):
                        if (mark := self._mark(place.shard)) is not None:
                            mark.touch()
                    raise self._hold_off(place.shard, BadSample("short_read", _strerror(error)))

    def _is_lost(self, shard: int) -> bool:
        """Return True if the shard is missing while the folder or bucket of its source exists."""
        if not root_is_there(self._index.shards["root"][shard].as_py()):
            return False
        try:
            stat_file(self._index.shard_paths[shard])  # again: folder and shard may just have become available
        except FileNotFoundError:
            return True
        return False

    def _others_can_be_read(self, shard: int) -> bool:
        """Return True if a random other shard of the source can be read now."""
        source = self._index.shards_of(self._index.shards["source"][shard].as_py())
        others = [other for other in source if other != shard]
        if not others:
            return False
        other = random.choice(others)
        size = self._index.shards["size"][other].as_py()
        place = random.randrange(max(1, size - _LOOK_BYTES))  # mostly not in a cache of this machine
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
        """Return True if a process gave up ``shard`` recently; only checked for shards that are not open."""
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
    """Return the result of ``action``, run in a thread that is abandoned after ``seconds``.

    Raises:
        TimeoutError: it took longer.
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
