"""Prove exactly-once consumption: compare a run's ledger with the sample order up to the final checkpoint."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from radioplat.data.ledger.ledger import CONSUMED_SCHEMA, lineage, read_rejected
from radioplat.data.loading.reader import Order
from radioplat.errors import DataError

WINDOW = 1 << 21  # samples in memory at a time
EXAMPLES = 5


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
    attempts: list[tuple[int, int, int]] = field(default_factory=list)
    examples: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """True if every expected sample was consumed exactly once."""
        return self.missing == self.repeated == self.misplaced == 0 and self.consumed == self.expected


def prove(
    directory: str | Path,
    order: Order,
    global_batch: int,
    final_step: int,
    *,
    first_step: int = 0,
    attempt: int | None = None,
) -> Proof:
    """Compare the ledger with the order, :data:`WINDOW` samples at a time.

    Args:
        directory: of the run's ledger.
        order: of the run.
        global_batch: samples of a step; position p belongs to step ``p // global_batch``.
        final_step: number of steps of the final checkpoint.
        first_step: the first step of this order.
        attempt: the one that wrote the checkpoint; default: the last.

    Raises:
        DataError: a file of the ledger cannot be read.
    """
    directory = Path(directory)
    files = sorted(directory.glob("consumed-a*.parquet"))
    proof = Proof(first_step, final_step, expected=(final_step - first_step) * global_batch)
    try:
        spans, rows = _spans(files)
        proof.attempts = [
            (number, max(start, first_step), stop)
            for number, start, stop in lineage(spans, final_step, attempt)
            if stop > first_step
        ]
        ledger = ds.dataset(files, schema=CONSUMED_SCHEMA, format="parquet")
        span = max(1, WINDOW // global_batch)
        for start in range(first_step, final_step, span):
            stop = min(start + span, final_step)
            _compare(proof, _rows(ledger, proof, start, stop), order, global_batch, start, stop)
        proof.before = ledger.count_rows(filter=ds.field("step") < first_step) if first_step else 0
        proof.replayed = rows - proof.consumed - proof.before
        proof.rejected = _rejected(directory / "rejects.parquet")
        proof.unlearned = _unlearned(directory, proof)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"the ledger cannot be read: {error}", where=str(directory)) from None
    return proof


def _spans(files: list[Path]) -> tuple[dict[int, tuple[int, int]], int]:
    """Read the first and last step of each attempt, and the number of rows, from the files' footers."""
    spans: dict[int, tuple[int, int]] = {}
    rows = 0
    place = CONSUMED_SCHEMA.get_field_index("step")
    for file in files:
        number, footer = int(file.name.split("-a")[1][:4]), pq.read_metadata(file)
        rows += footer.num_rows
        for group in range(footer.num_row_groups):
            steps = footer.row_group(group).column(place).statistics
            low, high = spans.get(number, (steps.min, steps.max))
            spans[number] = (min(low, steps.min), max(high, steps.max))
    return spans, rows


def _rows(ledger: ds.Dataset, proof: Proof, start: int, stop: int) -> pa.Table:
    """Read position, id and step of the rows of steps ``start`` to ``stop`` that led to the checkpoint."""
    step, wanted = ds.field("step"), None
    for number, first, last in proof.attempts:
        low, high = max(first, start), min(last, stop)
        if low < high:
            part = (ds.field("attempt") == number) & (step >= low) & (step < high)
            wanted = part if wanted is None else wanted | part
    columns = ["position", "id", "step"]
    return ledger.to_table(columns, filter=ds.scalar(False) if wanted is None else wanted)


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


def _rejected(path: Path) -> dict[str, int]:
    reasons = pq.read_table(path, columns=["reason"])["reason"].to_pylist() if path.exists() else []
    return dict(Counter(reasons).most_common())


def _unlearned(directory: Path, proof: Proof) -> dict[str, int]:
    """Count rejected samples by the reason's first word; of two reasons for one sample each counts once."""
    reasons = {
        (row["position"], row["reason"].partition(":")[0])
        for row in read_rejected(directory).to_pylist()
        if any(row["attempt"] == a and start <= row["step"] < stop for a, start, stop in proof.attempts)
    }
    return dict(Counter(reason for _, reason in reasons).most_common())
