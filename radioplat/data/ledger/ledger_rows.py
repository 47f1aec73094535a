"""The rows of a ledger by the steps that led to a checkpoint, file by file, wherever they are now."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from radioplat.data.ledger.chain import Chain
from radioplat.data.ledger.files import LedgerFile, Steps, Unreadable, rows_of
from radioplat.data.ledger.lineage import Part, Reached, parts_of
from radioplat.data.ledger.loose_files import loose_files, missing_steps


class LedgerRows:
    """Reader of one ledger; it changes nothing there.

    Args:
        directory: of the ledger.

    Attributes:
        unreadable: damaged files met so far, with the reason.

    Raises:
        NewerRecord: a newer version wrote ``windows.jsonl``.
        OSError: the storage fails.
    """

    def __init__(self, directory: Path) -> None:
        self.directory, self.unreadable = directory, Unreadable()
        self._chain = Chain(directory)
        self._loose = loose_files(directory, self._chain, self.unreadable)

    def parts(self, first_step: int, reached: Reached) -> list[Part]:
        """Return the steps from ``first_step`` on that led to a checkpoint, by the attempt that ran them."""
        return parts_of(self._chain, self._loose, first_step, reached)

    def tables(self, attempt: int, steps: Steps, columns: list[str] | None = None) -> Iterator[pa.Table]:
        """Yield the rows of some steps that an attempt ran; arguments as of :func:`rows_of`.

        Raises:
            FileNotFoundError: a running run has moved the rows meanwhile; another reader has them.
            OSError: the storage fails.
        """
        for file in self._files():
            if file.attempt == attempt and file.first < steps[1] and file.last >= steps[0]:
                yield rows_of([file], attempt, steps, self.unreadable, columns)

    def all_tables(self) -> Iterator[pa.Table]:
        """Yield all rows, also of steps that were run again or led to no checkpoint; errors as of :meth:`tables`."""
        for file in self._files():
            yield rows_of([file], file.attempt, (file.first, file.last + 1), self.unreadable)

    def _files(self) -> list[LedgerFile]:
        windows = [
            LedgerFile(self.directory / window.file, window.attempt, window.start, window.stop - 1, window.rows)
            for window in self._chain.windows
        ]
        return [*windows, *self._loose]

    def problems(self, first_step: int, reached: Reached) -> list[str]:
        """Return what of a checkpoint's steps cannot be read, a sentence each."""
        lost = missing_steps(self.directory, first_step, reached)
        problems = [f"{lost} steps have no row in the ledger"] if lost else []
        problems += [f"{window.file} is missing" for window in self._chain.missing]
        return problems + [f"{path.name} cannot be read: {reason}" for path, reason in self.unreadable.items()]
