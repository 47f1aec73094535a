"""Prove exactly-once consumption: compare a run's ledger with the sample order up to the final checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from radioplat.data.images.uniform_color import REASON as UNIFORM_COLOR
from radioplat.data.ledger.ledger import CONSUMED_SCHEMA, REJECTED_SCHEMA, lineage
from radioplat.data.loading.reader import Order

WINDOW = 1 << 21  # samples in memory at a time
EXAMPLES = 5
FEWEST = 1000  # samples of which a share is taken at least, as by `training/guards/bad_samples.py`
Result = TypeVar("Result")


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
        gaps: files of the ledger that cannot be read, with the reason; the rest is compared without them.
        attempts: ``(attempt, start, stop)`` of :func:`radioplat.data.ledger.ledger.lineage`.
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
    gaps: dict[Path, str] = field(default_factory=dict)
    attempts: list[tuple[int, int, int]] = field(default_factory=list)
    examples: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """True if every expected sample was consumed exactly once."""
        return self.missing == self.repeated == self.misplaced == 0 and self.consumed == self.expected

    @property
    def learnt(self) -> bool:
        """True if no more samples than the accepted share were consumed without weight."""
        return self.without_weight <= self.most_without_weight * max(FEWEST, self.expected)


@dataclass(frozen=True)
class _File:
    """A file of the ledger: the attempt that wrote it, its first and last step, and its number of rows."""

    path: Path
    attempt: int
    first: int
    last: int
    rows: int


def prove(
    directory: str | Path,
    order: Order,
    global_batch: int,
    final_step: int,
    *,
    first_step: int = 0,
    attempt: int | None = None,
    most_without_weight: float = 1.0,
) -> Proof:
    """Compare the ledger with the order, :data:`WINDOW` samples at a time; of files, those with rows of these steps.

    Args:
        directory: of the run's ledger.
        order: of the run.
        global_batch: samples of a step; position p belongs to step ``p // global_batch``.
        final_step: number of steps of the final checkpoint.
        first_step: the first step of this order.
        attempt: the one that wrote the checkpoint; default: the last.
        most_without_weight: see :class:`Proof`.
    """
    directory = Path(directory)
    expected = (final_step - first_step) * global_batch
    proof = Proof(first_step, final_step, expected, most_without_weight=most_without_weight)
    files = _files(proof, directory)
    spans: dict[int, tuple[int, int]] = {}
    for file in files:
        low, high = spans.get(file.attempt, (file.first, file.last))
        spans[file.attempt] = min(low, file.first), max(high, file.last)
    proof.attempts = [
        (number, max(start, first_step), stop)
        for number, start, stop in lineage(spans, final_step, attempt)
        if stop > first_step
    ]
    span = max(1, WINDOW // global_batch)
    for start in range(first_step, final_step, span):
        stop = min(start + span, final_step)
        _compare(proof, _rows(proof, files, start, stop), order, global_batch, start, stop)
    proof.before = sum(_rows_before(proof, file, first_step) for file in files)
    proof.replayed = sum(file.rows for file in files if file.path not in proof.gaps) - proof.consumed - proof.before
    proof.rejected = _rejected(proof, directory / "rejects.parquet")
    _count_unlearned(proof, directory)
    return proof


def _readable(proof: Proof, path: Path, read: Callable[[Path], Result]) -> Result | None:
    """Return what ``read`` returns; if it cannot read the file, add it to the gaps and return None."""
    try:
        return read(path)
    except (OSError, pa.ArrowException) as error:
        proof.gaps[path] = str(error).splitlines()[0] if str(error) else type(error).__name__
        return None


def _files(proof: Proof, directory: Path) -> list[_File]:
    """Read the footers of all files; those without rows are left out."""
    place = CONSUMED_SCHEMA.get_field_index("step")
    files = []
    for path in sorted(directory.glob("consumed-a*.parquet")):
        footer = _readable(proof, path, pq.read_metadata)
        groups = [] if footer is None else [footer.row_group(i) for i in range(footer.num_row_groups)]
        steps = [group.column(place).statistics for group in groups if group.num_rows]
        if footer is not None and steps:
            first, last = min(step.min for step in steps), max(step.max for step in steps)
            files.append(_File(path, int(path.name.split("-a")[1][:4]), first, last, footer.num_rows))
    return files


def _rows(proof: Proof, files: Sequence[_File], start: int, stop: int) -> pa.Table:
    """Read position, id and step of the rows of steps ``start`` to ``stop`` that led to the checkpoint."""
    columns = ["position", "id", "step"]
    tables = [pa.schema([CONSUMED_SCHEMA.field(name) for name in columns]).empty_table()]
    for number, first, last in proof.attempts:
        low, high = max(first, start), min(last, stop)
        for file in files:
            if file.attempt != number or file.first >= high or file.last < low:
                continue
            table = _readable(
                proof,
                file.path,
                lambda path: pq.read_table(path, columns=columns, schema=CONSUMED_SCHEMA, partitioning=None),
            )
            if table is not None:
                inside = pc.and_(pc.greater_equal(table["step"], low), pc.less(table["step"], high))
                tables.append(table.filter(inside))
    return pa.concat_tables(tables)


def _rows_before(proof: Proof, file: _File, step: int) -> int:
    """Return how many rows of ``file`` are of steps before ``step``."""
    if file.first >= step or file.path in proof.gaps:
        return 0
    if file.last < step:
        return file.rows
    table = _readable(proof, file.path, lambda path: pq.read_table(path, columns=["step"], partitioning=None))
    return 0 if table is None else pc.sum(pc.less(table["step"], step)).as_py() or 0


def _compare(proof: Proof, rows: pa.Table, order: Order, global_batch: int, start: int, stop: int) -> None:
    position, ids, step = (rows[name].to_numpy() for name in ("position", "id", "step"))
    low = start * global_batch
    expected = order.slice(low, stop * global_batch).sample_id
    correct = (position >= low) & (position < stop * global_batch) & (position // global_batch == step)
    correct[correct] = expected[position[correct] - low] == ids[correct]
    counts = np.bincount(position[correct] - low, minlength=len(expected))
    proof.consumed += len(position)
    proof.misplaced += int((~correct).sum())
    proof.missing += int((counts == 0).sum())
    proof.repeated += int((counts - 1).clip(0).sum())
    examples = []
    for row in np.flatnonzero(~correct)[:EXAMPLES].tolist():
        place = int(position[row])
        inside = low <= place < stop * global_batch
        has = f"sample {expected[place - low]} in step {place // global_batch}" if inside else "another step"
        examples.append(f"step {step[row]} saw sample {ids[row]} at position {place}, where the order has {has}")
    for place in np.flatnonzero(counts == 0)[:EXAMPLES].tolist():
        step_of = start + place // global_batch
        examples.append(f"sample {expected[place]} at position {low + place}, step {step_of}: not seen")
    for place in np.flatnonzero(counts > 1)[:EXAMPLES].tolist():
        examples.append(f"sample {expected[place]} at position {low + place}: seen {counts[place]} times")
    proof.examples = [*proof.examples, *examples][:EXAMPLES]


def _rejected(proof: Proof, path: Path) -> dict[str, int]:
    if not path.exists():
        return {}
    table = _readable(proof, path, lambda path: pq.read_table(path, columns=["reason"], partitioning=None))
    return {} if table is None else _counts(table["reason"])


def _count_unlearned(proof: Proof, directory: Path) -> None:
    """Count rejected samples, also by the reason's first word; of two reasons for one sample each counts once."""
    tables = []
    for path in sorted(directory.glob("rejected-a*.parquet")):
        table = _readable(proof, path, lambda path: pq.read_table(path, schema=REJECTED_SCHEMA, partitioning=None))
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
