"""Files of a ledger whose rows are in no window: those of workers, of abandoned steps, and of windows without a line.

Rows may be in two files for a while: a process that moves rows into a window is killed, or ``windows.jsonl`` was lost
or changed. This module decides which of them counts, from what is on disk alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path

from radioplat.common.atomic_files import sync_folder, written_aside
from radioplat.data.ledger.chain import Chain
from radioplat.data.ledger.files import LedgerFile, Steps, Unreadable, count_rows, ledger_files
from radioplat.data.ledger.lineage import Reached, parts_of

MOVE = "moving.json"
BY_WORKER, _OF_WINDOW, ABANDONED = "consumed-a*-r*.parquet", "consumed-a*-s*.parquet", "abandoned-a*.parquet"


@dataclass(frozen=True)
class Move:
    """``moving.json``: rows of these files are being moved into windows and files of abandoned steps.

    Attributes:
        mark: at the end of the names of the new files of abandoned steps.
        files: names of files of which rows may be in windows, too.
        moved: names of files whose rows are all in other files; they are being removed.
        done: the files of abandoned steps are written.
    """

    mark: str = ""
    files: list[str] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    done: bool = False

    @classmethod
    def read(cls, directory: Path) -> Move:
        """Read it; an empty one if there is no file. If it is damaged, any worker's file may be one that is moved.

        Raises:
            OSError: it cannot be read.
        """
        try:
            content = json.loads((directory / MOVE).read_bytes())
            files, moved = ([str(name) for name in content[key]] for key in ("files", "moved"))
            return cls(str(content["mark"]), files, moved, content["done"] is True)
        except FileNotFoundError:
            return cls()
        except (ValueError, KeyError, TypeError):
            return cls(files=[path.name for path in directory.glob(BY_WORKER)])

    def write(self, directory: Path) -> None:
        """Write it, and wait until it is on disk.

        Raises:
            OSError: it cannot be written.
        """
        with written_aside(directory / MOVE, sync=True) as aside:
            aside.write_text(json.dumps(asdict(self)))
        sync_folder(directory)


def loose_files(directory: Path, chain: Chain, unreadable: Unreadable) -> list[LedgerFile]:
    """Return the files with rows that count and are in no window that stands.

    A worker's file that is not being moved counts whole, also for steps of a window: its rows were written later.

    Raises:
        OSError: the storage fails.
    """
    move = Move.read(directory)
    moving = set(move.files)
    in_windows: dict[int, list[Steps]] = {}
    for window in chain.windows:
        in_windows.setdefault(window.attempt, []).append(window.steps)

    def without_windows(file: LedgerFile) -> LedgerFile:
        """Return the file without the steps that windows hold already."""
        near = [steps for steps in in_windows.get(file.attempt, ()) if _meet(file, steps)]
        return replace(file, elsewhere=tuple(near))

    removed = set(move.moved)
    by_worker = [path for path in directory.glob(BY_WORKER) if path.name not in removed]
    files = [
        without_windows(file) if file.path.name in moving else file for file in ledger_files(by_worker, unreadable)
    ]
    # Files of abandoned steps count once all rows are in them.
    abandoned = [path for path in directory.glob(ABANDONED) if move.done or not _has_mark(path, move.mark)]
    files += [without_windows(file) for file in ledger_files(abandoned, unreadable)]
    unnamed = [path for path in directory.glob(_OF_WINDOW) if path.name not in chain.files | removed]
    files = _with_unnamed(files, [without_windows(file) for file in ledger_files(unnamed, unreadable)], unreadable)
    return [file for file in files if not _is_covered(file)]


def _with_unnamed(files: list[LedgerFile], unnamed: list[LedgerFile], unreadable: Unreadable) -> list[LedgerFile]:
    """Add window files without a line: each counts if the other files have no more rows of its steps."""
    for file in sorted(unnamed, key=lambda file: -file.rows):
        steps = (file.first, file.last + 1)
        others = sum(count_rows(other, [steps], unreadable) for other in files if other.attempt == file.attempt)
        if count_rows(file, [steps], unreadable) >= others:
            files = [
                replace(other, elsewhere=(*other.elsewhere, steps))
                if other.attempt == file.attempt and _meet(other, steps)
                else other
                for other in files
            ] + [file]
    return files


def is_unnamed(name: str) -> bool:
    """Return True if ``name`` is that of a window's file; of those that are loose no line of the chain has the name."""
    return fnmatch(name, _OF_WINDOW)


def is_abandoned(name: str) -> bool:
    """Return True if ``name`` is that of a file of abandoned steps."""
    return fnmatch(name, ABANDONED)


def is_by_worker(name: str) -> bool:
    """Return True if ``name`` is that of a file of consumed rows that a worker wrote."""
    return fnmatch(name, BY_WORKER)


def _has_mark(path: Path, mark: str) -> bool:
    return bool(mark) and path.stem.endswith(mark)


def _meet(file: LedgerFile, steps: Steps) -> bool:
    return file.first < steps[1] and steps[0] <= file.last


def _is_covered(file: LedgerFile) -> bool:
    """Return True if no row of ``file`` counts, as far as the footers tell."""
    place = file.first
    for start, stop in sorted(file.elsewhere):
        if start > place:
            return False
        place = max(place, stop)
    return place > file.last


def missing_steps(directory: Path, first_step: int, reached: Reached) -> int:
    """Return how many of the steps that led to a checkpoint have no row in a ledger, as far as the footers tell.

    Raises:
        OSError: the storage fails.
    """
    chain, unreadable = Chain(directory), Unreadable()
    loose = loose_files(directory, chain, unreadable)
    parts = parts_of(chain, loose, first_step, reached)
    lacking = sum(stop - start for start, stop in uncovered((first_step, reached.steps), [part[1:] for part in parts]))
    for number, *steps in parts:
        there = [window.steps for window in chain.windows if window.attempt == number]
        there += [(file.first, file.last + 1) for file in loose if file.attempt == number]
        lacking += sum(stop - start for start, stop in uncovered((steps[0], steps[1]), there))
    return lacking


def uncovered(steps: Steps, ranges: Sequence[Steps]) -> list[Steps]:
    """Return the parts of ``steps`` that are in none of the ranges, in order."""
    parts, place = [], steps[0]
    for start, stop in sorted(ranges):
        if start > place and place < steps[1]:
            parts.append((place, min(start, steps[1])))
        place = max(place, stop)
    return [*parts, (place, steps[1])] if place < steps[1] else parts
