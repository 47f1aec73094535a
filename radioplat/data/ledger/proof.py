"""Prove exactly-once consumption: compare a run's ledger with the sample order up to the final checkpoint."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from radioplat.data.images.uniform_color import REASON as UNIFORM_COLOR
from radioplat.data.ledger.chain import Chain, Window
from radioplat.data.ledger.compare import EXAMPLES, Comparison, compare, compare_positions
from radioplat.data.ledger.files import (
    BLOCK_ROWS,
    COMPARED,
    LedgerFile,
    Unreadable,
    count_rows,
    digest,
    ledger_files,
    read_block,
    rows_of,
)
from radioplat.data.ledger.ledger import REJECTED_SCHEMA
from radioplat.data.ledger.lineage import Part, Reached, led_to, parts_of
from radioplat.data.ledger.loose_files import loose_files
from radioplat.data.ledger.roll_up import WINDOW_ROWS, Ordered

FEWEST = 1000  # samples of which a share is taken at least, as by `training/guards/bad_samples.py`
SHARE = 100  # one row in so many is read again
LEAST_ROWS = WINDOW_ROWS  # that are read again, at least
_TRIES = 5  # while a run goes on, files move under the reader


@dataclass
class Proof:
    """Comparison of ledger and order for steps ``first_step`` to ``final_step`` (exclusive).

    Attributes:
        expected: samples of the order in these steps.
        consumed: rows of the ledger in these steps, by the attempts that led to the final checkpoint.
        missing: expected samples without a row of their position and step; 0 in a correct run.
        repeated: rows beyond the first of an expected sample; 0 in a correct run.
        misplaced: rows whose id or step differs from the order's at their position; 0 in a correct run.
        replayed: rows of steps that were run again or discarded.
        before: rows of steps before ``first_step``, which followed another order.
        rejected: number of rows and members that are not in the order, by reason.
        unlearned: consumed samples of weight 0 or of a skipped step, by reason.
        without_weight: number of these samples, without those that the spec leaves out for their colour.
        most_without_weight: the share of the expected samples that ``without_weight`` may be.
        checked: rows that were compared with the order now; the others were when they were written.
        unreadable: files of the ledger that are damaged or were changed, with the reason; the rest is compared without
            them.
        attempts: ``(attempt, start, stop)`` of the steps that led to the final checkpoint.
        examples: descriptions of the first differences.
    """

    first_step: int
    final_step: int
    expected: int = 0
    consumed: int = 0
    missing: int = 0
    repeated: int = 0
    misplaced: int = 0
    replayed: int = 0
    before: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    unlearned: dict[str, int] = field(default_factory=dict)
    without_weight: int = 0
    most_without_weight: float = 1.0
    checked: int = 0
    unreadable: Unreadable = field(default_factory=Unreadable)
    attempts: list[tuple[int, int, int]] = field(default_factory=list)
    examples: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """True if every expected sample was consumed exactly once."""
        return self.missing == self.repeated == self.misplaced == 0 and self.consumed == self.expected

    def add(self, result: Comparison) -> None:
        """Add rows of some steps and how they differ from the order."""
        self.consumed += result.rows
        self.missing += result.missing
        self.repeated += result.repeated
        self.misplaced += result.misplaced
        self.examples = [*self.examples, *result.examples][:EXAMPLES]

    @property
    def learnt(self) -> bool:
        """True if no more samples than the accepted share were consumed without weight."""
        return self.without_weight <= self.most_without_weight * max(FEWEST, self.expected)


def prove(
    directory: str | Path,
    ordered: Ordered,
    reached: Reached,
    *,
    most_without_weight: float = 1.0,
    full: bool = False,
) -> Proof:
    """Compare the ledger with the order. Of the rows in windows, one in :data:`SHARE` is read again.

    Memory holds :data:`radioplat.data.ledger.roll_up.WINDOW_ROWS` samples at a time.

    Args:
        directory: of the run's ledger.
        reached: the final checkpoint.
        most_without_weight: see :class:`Proof`.
        full: compare every row.

    Raises:
        NewerRecord: a newer version wrote ``windows.jsonl``.
        OSError: the storage fails.
    """
    for attempt in range(_TRIES):
        before = Chain(Path(directory)).hashes
        try:
            proof = _prove(Path(directory), ordered, reached, most_without_weight, full)
        except FileNotFoundError:
            if attempt == _TRIES - 1:
                raise
            time.sleep(0.1 * 2**attempt)
            continue
        if proof.holds or Chain(Path(directory)).hashes == before:
            return proof
    return proof


def _prove(directory: Path, ordered: Ordered, reached: Reached, most_without_weight: float, full: bool) -> Proof:
    first_step, batch = ordered.first_step, ordered.global_batch
    expected = (reached.steps - first_step) * batch
    proof = Proof(first_step, reached.steps, expected, most_without_weight=most_without_weight)
    chain = Chain(directory)
    if chain.broken:
        proof.unreadable[chain.path] = f"{chain.broken}; every row is compared"
    proof.unreadable.update({directory / window.file: "it is missing" for window in chain.missing})
    loose = loose_files(directory, chain, proof.unreadable)
    proof.attempts = parts_of(chain, loose, first_step, reached)
    windows = [
        window
        for window in chain.windows
        if window.order == ordered.name and window.stop <= reached.steps and led_to(window, proof.attempts, first_step)
    ]
    own = {window.file for window in windows}
    loose += ledger_files((directory / name for name in sorted(chain.files - own)), proof.unreadable)
    chosen = _chosen(windows, full)
    in_windows, place = 0, first_step
    for window in windows:
        _compare_steps(proof, loose, ordered, place, window.start)
        before = proof.consumed
        _compare_window(proof, directory / window.file, window, ordered, chosen.get(window.file, []))
        in_windows += proof.consumed - before
        place = window.stop
    _compare_steps(proof, loose, ordered, place, reached.steps)
    later = {number: [window.steps for window in windows if window.attempt == number] for number, *_ in proof.attempts}
    again = sum(count_rows(file, later.get(file.attempt, []), proof.unreadable) for file in loose)
    proof.consumed, proof.repeated = proof.consumed + again, proof.repeated + again
    readable = [file for file in loose if file.path not in proof.unreadable]
    rows = sum(count_rows(file, [(file.first, file.last + 1)], proof.unreadable) for file in readable)
    proof.before = sum(count_rows(file, [(0, first_step)], proof.unreadable) for file in readable)
    proof.replayed = rows - (proof.consumed - in_windows) - proof.before
    proof.rejected = _rejected(proof, directory / "rejects.parquet")
    _count_unlearned(proof, directory)
    return proof


def _chosen(windows: Sequence[Window], full: bool) -> dict[str, list[int]]:
    """Choose the row groups to read again, by the name of their file; others at each call."""
    blocks = [(window.file, number, min(BLOCK_ROWS, window.rows - number * BLOCK_ROWS))
              for window in windows for number in range(len(window.blocks))]  # fmt: skip
    wanted = sum(rows for *_, rows in blocks)
    if not full:
        wanted = min(wanted, max(-(-wanted // SHARE), LEAST_ROWS))
    chosen: dict[str, list[int]] = {}
    for place in np.random.default_rng().permutation(len(blocks)).tolist():
        name, number, rows = blocks[place]
        if wanted > 0:
            chosen.setdefault(name, []).append(number)
            wanted -= rows
    return {name: sorted(numbers) for name, numbers in chosen.items()}


def _compare_window(proof: Proof, path: Path, window: Window, ordered: Ordered, blocks: Sequence[int]) -> None:
    """Add a window: all its samples, if the chosen row groups of its file are as they were written."""
    changed = proof.unreadable.read(path, lambda path: _changed(path, window, ordered, blocks))
    if changed == "":
        proof.add(Comparison(window.rows))
        proof.checked += sum(min(BLOCK_ROWS, window.rows - number * BLOCK_ROWS) for number in blocks)
        return
    if changed is not None:
        proof.unreadable[path] = changed
    rows = rows_of(ledger_files([path], Unreadable()), window.attempt, window.steps, Unreadable(), COMPARED)
    proof.add(compare(rows, ordered.order, ordered.global_batch, *window.steps))
    proof.checked += len(rows)


def _changed(path: Path, window: Window, ordered: Ordered, blocks: Sequence[int]) -> str:
    """Return how the file of a window differs from what was written, as far as ``blocks`` tell; else an empty text."""
    if path.stat().st_size != window.size:
        return f"it has {path.stat().st_size} bytes, {window.size} were written"
    low = window.start * ordered.global_batch
    for number in blocks:
        rows, place = read_block(path, number), low + number * BLOCK_ROWS
        if not compare_positions(rows, ordered.order, ordered.global_batch, place, place + len(rows)).holds:
            return f"row group {number} differs from the order, and did not when it was written"
        if digest(rows) != window.blocks[number]:
            return f"row group {number} is not what it was when it was written"
    return ""


def _compare_steps(proof: Proof, files: Sequence[LedgerFile], ordered: Ordered, start: int, stop: int) -> None:
    """Compare the rows of steps that are in no window, at most :data:`WINDOW_ROWS` at a time."""
    span = max(1, WINDOW_ROWS // ordered.global_batch)
    for low in range(start, stop, span):
        high = min(low + span, stop)
        parts: list[Part] = [(number, max(first, low), min(last, high)) for number, first, last in proof.attempts]
        tables = [
            rows_of(files, number, (first, last), proof.unreadable, COMPARED)
            for number, first, last in parts
            if first < last
        ]
        rows = pa.concat_tables(tables) if tables else rows_of([], 0, (0, 0), proof.unreadable, COMPARED)
        proof.add(compare(rows, ordered.order, ordered.global_batch, low, high))
        proof.checked += len(rows)


def _rejected(proof: Proof, path: Path) -> dict[str, int]:
    if not path.exists():
        return {}
    table = proof.unreadable.read(path, lambda path: pq.read_table(path, columns=["reason"], partitioning=None))
    return {} if table is None else _counts(table["reason"])


def _count_unlearned(proof: Proof, directory: Path) -> None:
    """Count rejected samples, also by the reason's first word; of two reasons for one sample each counts once."""
    tables = []
    for path in sorted(directory.glob("rejected-a*.parquet")):
        table = proof.unreadable.read(path, lambda path: pq.read_table(path, schema=REJECTED_SCHEMA, partitioning=None))
        if table is None:
            continue
        for number, start, stop in proof.attempts:
            inside = pc.and_(pc.greater_equal(table["step"], start), pc.less(table["step"], stop))
            mine = table.filter(pc.and_(inside, pc.equal(table["attempt"], number)))
            word = pc.list_element(pc.split_pattern(mine["reason"], ":", max_splits=1), 0)
            tables.append(pa.table({"position": mine["position"], "reason": word}))
    if tables:
        rows = pa.concat_tables(tables).group_by(["position", "reason"]).aggregate([])
        proof.unlearned = _counts(rows["reason"])
        bad = rows.filter(pc.not_equal(rows["reason"], UNIFORM_COLOR))
        proof.without_weight = pc.count_distinct(bad["position"]).as_py()


def _counts(values: pa.ChunkedArray) -> dict[str, int]:
    """Return how often each value is there, the most frequent first."""
    numbers = {each["values"]: each["counts"] for each in values.value_counts().to_pylist()}
    return dict(sorted(numbers.items(), key=lambda item: -item[1]))
