"""Read again, during a scan, what storage did not give."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from radioplat.data.scan.scan import ScanBatch
from radioplat.data.scan.sources import SourceFiles
from radioplat.data.storage.outage import StorageWait, may_be_of_one_file


@dataclass(frozen=True)
class Patience:
    """Time limits for reading again what storage does not give, in seconds.

    Attributes:
        one_file: a file that may alone be at fault, while others of its source can be read; then it is left out.
        store: anything else; then the build ends.
    """

    one_file: float
    store: float


class ScanWait:
    """Context manager that decides whether files are scanned: once, and those that could not be read after a pause."""

    def __init__(self, sources: Sequence[SourceFiles], patience: Patience | None) -> None:
        self._sources, self._patience = sources, patience
        self._scanned = False
        self._alone_since: float | None = None  # since when every lost file may alone be at fault
        self._wait: StorageWait | None = None

    def __enter__(self) -> ScanWait:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        if self._wait is not None:
            self._wait.__exit__(kind, *exception)

    def may_read(self, batches: Sequence[ScanBatch], answer: Callable[[str], str]) -> bool:
        """Return True, after a pause if the files have been scanned before, or False if they are left out.

        Args:
            batches: files that are not known, or could not be read.
            answer: returns the storage's last answer for a path.

        Raises:
            StorageError: storage failed for longer than ``patience.store``.
        """
        if not self._scanned:
            self._scanned = True
            return True
        if self._patience is None:
            return False
        lost = {f"{batch.root}/{name}" for batch in batches for name in batch.names}
        of_store = [path for path in lost if self._is_of_store(path, lost, answer(path))]
        path = min(of_store or lost)
        if self._wait is None:
            self._wait = StorageWait(path, time.monotonic(), self._patience.store)
        # Not since the first scan: an outage may end in the middle of a scan, and its last files look alone at fault.
        self._alone_since = None if of_store else self._alone_since or time.monotonic()
        if self._alone_since is not None and time.monotonic() - self._alone_since >= self._patience.one_file:
            return False
        self._wait.failed(OSError(answer(path)))
        return True

    def _is_of_store(self, path: str, lost: set[str], answer: str) -> bool:
        """Return whether more than this file is at fault: by the answer, or as no file of its source can be read."""
        if not may_be_of_one_file(path, OSError(answer)):
            return True
        own = (source for source in self._sources if path.startswith(f"{source.root}/"))
        return any(all(f"{source.root}/{file.name}" in lost for file in source.files) for source in own)
