"""Prove exactly-once consumption: compare a run's ledger with the sample order up to the final checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from radioplat.data.images.uniform_color import REASON as UNIFORM_COLOR
from radioplat.data.ledger.chain import NAME as CHAIN
from radioplat.data.ledger.chain import Chain, Window
from radioplat.data.ledger.compare import EXAMPLES, Comparison, compare, compare_positions
from radioplat.data.ledger.files import BLOCK, COMPARED, Gaps, LedgerFile, digest, ledger_files, read_block, rows_of
from radioplat.data.ledger.ledger import REJECTED_SCHEMA
from radioplat.data.ledger.roll_up import ROWS, Ordered, parts_of, unrolled

FEWEST = 1000  # samples of which a share is taken at least, as by `training/guards/bad_samples.py`
SHARE = 100  # one block in so many is read again
LEAST = ROWS  # rows that are read again at least


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
        gaps: files of the ledger that are damaged, with the reason; the rest is compared without them.
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
    gaps: Gaps = field(default_factory=Gaps)
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
    final_step: int,
    *,
    attempt: int | None = None,
    most_without_weight: float = 1.0,
    full: bool = False,
) -> Proof:
    """Compare the ledger with the order. Of steps in windows, one block in :data:`SHARE` is read again.

    Memory holds :data:`radioplat.data.ledger.roll_up.ROWS` samples at a time.

    Args:
        directory: of the run's ledger.
        final_step: number of steps of the final checkpoint.
        attempt: the one that wrote the checkpoint; default: the last.
        most_without_weight: see :class:`Proof`.
        full: compare every row.

    Raises:
        NewerRecord: a newer version wrote ``windows.jsonl``.
        OSError: the storage fails.
    """
    directory, first_step = Path(directory), ordered.first_step
    expected = (final_step - first_step) * ordered.global_batch
    proof = Proof(first_step, final_step, expected, most_without_weight=most_without_weight)
    chain = Chain(directory)
    if chain.broken:
        proof.gaps[directory / CHAIN] = f"{chain.broken}; every row is compared"
    files = unrolled(directory, chain, proof.gaps)
    proof.attempts = parts_of(chain, files, first_step, final_step, attempt)
    windows = list(_leading(chain, proof.attempts, ordered, final_step))
    proof.gaps.update({directory / name: why for window in windows for name, why in window.gaps.items()})
    used = {window.file: window for window in windows}
    files += ledger_files((directory / name for name in sorted(chain.files - set(used))), proof.gaps)
    chosen = _chosen(windows, full or bool(chain.broken))
    in_windows, place = 0, first_step
    for window in windows:
        _compare_steps(proof, files, ordered, place, window.start)
        before = proof.consumed
        path, blocks = directory / window.file, chosen.get(window.file, [])
        if chain.broken or not _as_written(proof, path, window, ordered, blocks):
            _compare_all(proof, path, window, ordered)
        in_windows += proof.consumed - before
        place = window.stop
    _compare_steps(proof, files, ordered, place, final_step)
    readable = [file for file in files if file.path not in proof.gaps]
    proof.before = sum(_rows_in(file, [(0, first_step)], proof.gaps) for file in readable)
    others = sum(file.rows - _rows_in(file, _steps(windows, file.attempt), proof.gaps) for file in readable)
    proof.replayed = others + sum(chain.replayed.values()) - (proof.consumed - in_windows) - proof.before
    proof.rejected = _rejected(proof, directory / "rejects.parquet")
    _count_unlearned(proof, directory)
    return proof


def _leading(
    chain: Chain, attempts: Sequence[tuple[int, int, int]], ordered: Ordered, final_step: int
) -> Iterator[Window]:
    """Yield the windows of this order that led to the final checkpoint and end before it."""
    covered = {number: (start, stop) for number, start, stop in attempts}
    for window in chain.windows:
        start, stop = covered.get(window.attempt, (0, 0))
        mine = window.order == ordered.name and window.start >= ordered.first_step
        if mine and start <= window.start and window.stop <= min(stop, final_step):
            yield window


def _chosen(windows: Sequence[Window], full: bool) -> dict[str, list[int]]:
    """Choose the blocks to read again, by the name of their file: one in :data:`SHARE`, or :data:`LEAST` rows."""
    blocks = [(window.file, number) for window in windows for number in range(len(window.blocks))]
    count = len(blocks) if full else max(-(-len(blocks) // SHARE), -(-LEAST // BLOCK))
    if count < len(blocks):  # others at each call
        picked = np.sort(np.random.default_rng().choice(len(blocks), count, replace=False))
        blocks = [blocks[i] for i in picked.tolist()]
    chosen: dict[str, list[int]] = {}
    for name, number in blocks:
        chosen.setdefault(name, []).append(number)
    return chosen


def _as_written(proof: Proof, path: Path, window: Window, ordered: Ordered, blocks: Sequence[int]) -> bool:
    """Add what was counted when a window was written, if the chosen blocks of its file are as they were then."""
    try:
        changed = proof.gaps.read(path, lambda path: _changed(path, window, ordered, blocks))
    except FileNotFoundError:
        changed = "it is missing"
    if changed == "":
        proof.add(Comparison(window.rows, window.missing, window.repeated, window.misplaced, window.examples))
        proof.checked += sum(min(BLOCK, window.rows - number * BLOCK) for number in blocks)
    elif changed is not None:
        proof.gaps[path] = changed
    return changed == ""


def _compare_all(proof: Proof, path: Path, window: Window, ordered: Ordered) -> None:
    """Add what is left of a window's file, compared with the order."""
    files = ledger_files([path], Gaps()) if path.exists() else []
    rows = rows_of(files, window.attempt, window.start, window.stop, Gaps(), COMPARED)
    proof.add(compare(rows, ordered.order, ordered.global_batch, window.start, window.stop))
    proof.checked += len(rows)


def _changed(path: Path, window: Window, ordered: Ordered, blocks: Sequence[int]) -> str:
    """Return how the file of a window differs from what was written."""
    clean = window.missing == window.repeated == window.misplaced == 0
    footer = pq.read_metadata(path)
    if footer.num_rows != window.rows or footer.num_row_groups != len(window.blocks):
        return f"it has {footer.num_rows} rows, {window.rows} were written"
    low = window.start * ordered.global_batch
    for number in blocks:
        rows = read_block(path, number)
        place = low + number * BLOCK
        if not clean and digest(rows) != window.blocks[number]:
            return f"row group {number} is not what was written"
        # Rows that are the order's are what was written, too.
        if clean and not compare_positions(rows, ordered.order, ordered.global_batch, place, place + len(rows)).holds:
            return f"row group {number} differs from the order, and did not when it was written"
    return ""


def _compare_steps(proof: Proof, files: Sequence[LedgerFile], ordered: Ordered, start: int, stop: int) -> None:
    """Compare the rows of steps that are in no window, at most :data:`ROWS` at a time."""
    span = max(1, ROWS // ordered.global_batch)
    for low in range(start, stop, span):
        high = min(low + span, stop)
        parts = [(number, max(first, low), min(last, high)) for number, first, last in proof.attempts]
        tables = [rows_of(files, *part, proof.gaps, COMPARED) for part in parts if part[1] < part[2]]
        rows = pa.concat_tables(tables) if tables else rows_of([], 0, 0, 0, proof.gaps, COMPARED)
        proof.add(compare(rows, ordered.order, ordered.global_batch, low, high))
        proof.checked += len(rows)


def _steps(windows: Sequence[Window], attempt: int) -> list[tuple[int, int]]:
    return [(window.start, window.stop) for window in windows if window.attempt == attempt]


def _rows_in(file: LedgerFile, steps: Sequence[tuple[int, int]], gaps: Gaps) -> int:
    """Return how many rows of ``file`` are of the given ranges of steps, which do not overlap."""
    steps = [(start, stop) for start, stop in steps if start <= file.last and file.first < stop]
    if any(start <= file.first and file.last < stop for start, stop in steps):
        return file.rows
    return sum(len(rows_of([file], file.attempt, start, stop, gaps, ["step"])) for start, stop in steps)


def _rejected(proof: Proof, path: Path) -> dict[str, int]:
    if not path.exists():
        return {}
    table = proof.gaps.read(path, lambda path: pq.read_table(path, columns=["reason"], partitioning=None))
    return {} if table is None else _counts(table["reason"])


def _count_unlearned(proof: Proof, directory: Path) -> None:
    """Count rejected samples, also by the reason's first word; of two reasons for one sample each counts once."""
    tables = []
    for path in sorted(directory.glob("rejected-a*.parquet")):
        table = proof.gaps.read(path, lambda path: pq.read_table(path, schema=REJECTED_SCHEMA, partitioning=None))
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
