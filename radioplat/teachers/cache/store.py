"""A folder of cached features that many processes write and read at once, limited in bytes.

Each file is written once, completely, under a unique name, so writers never conflict. Files of other processes are
found by listing. Samples of a file that is damaged, of another format or removed are computed again, and such files are
counted. A cache with files of a newer version is refused when it is opened; after that it never stops a run.

A full cache keeps its content: in the order of an epoch, eviction would drop exactly the samples needed next, so that
no lookup would ever hit.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from radioplat.data.storage.files import HandlePool, absolute, list_files, remove_file, write_file
from radioplat.errors import SpecError
from radioplat.spec.resolved.paths import is_remote
from radioplat.teachers.cache.file import SUFFIX, FeatureFile, Row, encode, layout
from radioplat.tracking.record_versions import NewerRecord

WRITE_BYTES = 2**26  # bytes of features to collect before a file is written
WRITE_SECONDS = 60.0  # after which the next ones are written with them anyway: `feature_cache.write_interval_s`
LIST_SECONDS = 30.0  # between two listings of the folder
# Both begin with this, if it is less, and double: in a short run other workers soon need what one has computed, and a
# long run does not leave a file for every few seconds.
FIRST_SECONDS = 4.0
_LEFT_BEHIND_SECONDS = 86_400.0  # after which a partial file is abandoned


class FeatureStore:
    """A cache of features, by key.

    Args:
        folder: local, or ``s3://...``, ``gs://...``; created if missing.
        max_bytes: of all its files; further features are not cached.
        say: called at most once, with a line for the user, when the cache stops being filled.
        write_seconds: the first :meth:`put` after so many writes what there is, however little. 0: each :meth:`put`
            hands its features to the thread that writes.

    Attributes:
        ignored: number of files that are damaged, or not of this format.
        lost: number of files that could not be read any more.

    Raises:
        SpecError: the folder cannot be read or created.
        NewerRecord: a newer version wrote one of its files.
    """

    def __init__(
        self,
        folder: str,
        max_bytes: int,
        say: Callable[[str], None] | None = None,
        write_seconds: float = WRITE_SECONDS,
    ) -> None:
        self._folder, self._max, self._say = absolute(folder), max_bytes, say or _to_stderr
        self._write_bytes = min(WRITE_BYTES, max(1, max_bytes // 16))
        self._lock = threading.RLock()
        self._listing = threading.Lock()
        self._pool = HandlePool(256)
        self._files: dict[int, FeatureFile] = {}
        self._names: set[str] = set()  # of the files whose keys were read
        self._index: dict[bytes, int] = {}  # key -> number of its file << 32 | row
        self._fresh: dict[bytes, Row] = {}  # not yet passed to the writer
        self._fresh_bytes, self._fresh_since = 0, 0.0
        self._leaving: list[dict[bytes, Row]] = []  # passed to the writer
        self._writes: deque[Future] = deque()  # of the parts passed to the writer, the oldest first
        self._writer = ThreadPoolExecutor(1, "cache-writer")
        self._readers = ThreadPoolExecutor(8, "cache-reader")
        self._stopped = ""  # reason why writing has stopped
        self._write_seconds = write_seconds
        self._write_after, self._list_after = min(FIRST_SECONDS, write_seconds), FIRST_SECONDS
        self.ignored = self.lost = 0
        self._newer: NewerRecord | None = None  # of the first file of a newer version
        try:
            self._open()
        except OSError as error:
            raise SpecError(
                f"the feature cache cannot be used: {error.strerror or error}",
                where="feature_cache.dir",
                hint=f"Make {self._folder} readable and writable, or name another folder.",
            ) from None
        if self._newer is not None:
            self.close()
            raise self._newer

    def __len__(self) -> int:
        with self._lock:
            written = sum(place >> 32 in self._files for place in self._index.values())
            return written + len(self._fresh) + sum(map(len, self._leaving))

    def get(self, keys: Sequence[bytes]) -> list[Row | None]:
        """Return the features of each key, None if missing."""
        if not all(map(self._knows, keys)) and time.monotonic() - self._listed > self._list_after:
            self._list_after = min(2 * self._list_after, LIST_SECONDS)
            with contextlib.suppress(OSError):  # the folder may be readable next time
                self._list()
        # Threads only for an object store, whose latency is high.
        each = self._readers.map if is_remote(self._folder) else map
        return list(each(self._get, keys))

    def put(self, rows: Mapping[bytes, Row]) -> None:
        """Queue ``rows``, by key, for writing, unless the cache is full; their arrays must not be changed any more."""
        for key, row in rows.items():
            with self._lock:
                if self._stopped or self._knows(key):
                    continue
                if not self._fresh:
                    self._fresh_since = time.monotonic()
                self._fresh[key] = row
                self._fresh_bytes += sum(array.nbytes for array in row.values())
            if self._fresh_bytes >= self._write_bytes:
                self._hand_over()
        with self._lock:
            late = bool(self._fresh) and time.monotonic() - self._fresh_since >= self._write_after
            if late:
                self._write_after = min(2 * self._write_after, self._write_seconds)
        if late:
            self._hand_over()

    def flush(self) -> None:
        """Write everything that was put so far, and wait for it."""
        self._hand_over(most=0)

    def close(self) -> None:
        """Write the rest and end the threads."""
        self.flush()
        self._writer.shutdown()
        self._readers.shutdown()

    def _open(self) -> None:
        if not is_remote(self._folder):
            os.makedirs(self._folder, exist_ok=True)
            if not os.access(self._folder, os.R_OK | os.W_OK | os.X_OK):
                raise PermissionError(13, "Permission denied", self._folder)
            for path in Path(self._folder).glob(f".*{SUFFIX}.*"):
                with contextlib.suppress(OSError):
                    if time.time() - path.stat().st_mtime > _LEFT_BEHIND_SECONDS:
                        path.unlink()
        self._list()

    def _list(self) -> None:
        """Read files that are new in the folder."""
        with self._listing:
            self._listed = time.monotonic()
            fresh = [name for name in self._sizes() if name not in self._names]
            for name, file in zip(fresh, self._readers.map(self._look, fresh), strict=True):
                self._add(name, file)

    def _sizes(self) -> dict[str, int]:
        """Return bytes of every file of the cache, by name."""
        try:
            listed = list_files(self._folder, lambda name: name.endswith(SUFFIX))
        except FileNotFoundError:  # in an object store an empty folder does not exist
            return {}
        return {name: state.size for name, state in listed}

    def _look(self, name: str) -> FeatureFile | None:
        try:
            return FeatureFile(f"{self._folder}/{name}")
        except (ValueError, NewerRecord) as error:
            with self._lock:
                self.ignored += 1
                if isinstance(error, NewerRecord):
                    self._newer = self._newer or error
        except OSError:  # removed since it was listed
            with self._lock:
                self.lost += 1
        return None

    def _add(self, name: str, file: FeatureFile | None) -> None:
        with self._lock:
            if name in self._names:
                return
            self._names.add(name)
            if file is None:
                return
            number = len(self._names)
            self._files[number] = file
            for row, key in enumerate(file.keys):
                self._index.setdefault(key, number << 32 | row)
            file.keys = []

    def _knows(self, key: bytes) -> bool:
        with self._lock:
            place = self._index.get(key)
            if place is not None and place >> 32 not in self._files:
                del self._index[key]  # its file is lost
                place = None
            return place is not None or self._unwritten(key) is not None

    def _unwritten(self, key: bytes) -> Row | None:
        for rows in (self._fresh, *self._leaving):
            if key in rows:
                return rows[key]
        return None

    def _get(self, key: bytes) -> Row | None:
        with self._lock:
            if not self._knows(key):
                return None
            place = self._index.get(key)
            if place is None:
                return self._unwritten(key)
            file = self._files[place >> 32]
        try:
            return file.read(place & 0xFFFFFFFF, self._pool)
        except (OSError, ValueError):
            with self._lock:
                if self._files.pop(place >> 32, None) is not None:
                    self.lost += 1
            self._pool.drop(file.path)
            return None

    def _hand_over(self, most: int = 2) -> None:
        """Pass fresh rows to the writer, and wait until it has at most ``most`` such parts."""
        with self._lock:
            rows, self._fresh, self._fresh_bytes = self._fresh, {}, 0
            if rows:
                self._leaving.append(rows)
                self._writes.append(self._writer.submit(self._write, rows))
            late = [self._writes.popleft() for _ in range(len(self._writes) - most)]
        for write in late:  # if storage is slow, the run waits, which limits the memory
            write.result()

    def _write(self, rows: dict[bytes, Row]) -> None:
        """Write a part; runs in the writer's thread."""
        try:
            self._write_files(rows)
        finally:
            with self._lock:
                self._leaving = [others for others in self._leaving if others is not rows]

    def _write_files(self, rows: dict[bytes, Row]) -> None:
        groups: dict[tuple, list[bytes]] = {}
        for key, row in rows.items():
            groups.setdefault(layout(row), []).append(key)
        for keys in groups.values():
            if self._stopped:
                return
            try:
                self._write_file(encode(keys, [rows[key] for key in keys]))
            except OSError as error:
                self._stop(f"cannot be written to ({error.strerror or error})")

    def _write_file(self, data: bytes) -> None:
        name = f"{uuid.uuid4().hex}{SUFFIX}"
        path = f"{self._folder}/{name}"
        room = self._max - sum(self._sizes().values())
        if len(data) <= room:
            write_file(path, data)
            # Others may have written meanwhile. The last writer sees all files, and removes its own.
            if sum(self._sizes().values()) <= self._max:
                self._add(name, self._look(name))
                return
            remove_file(path)
        self._stop(f"has its {self._max:,} bytes (feature_cache.max_bytes)")

    def _stop(self, why: str) -> None:
        with self._lock:
            first, self._stopped = not self._stopped, why
        if first:
            self._say(f"feature cache {self._folder} {why}: what it holds is used, nothing is added")


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
