"""Compare rows of the ledger with the sample order."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from radioplat.data.loading.reader import Order

EXAMPLES = 5


@dataclass
class Comparison:
    """Rows of some steps beside the order's samples.

    Attributes:
        rows: number of rows.
        missing: expected samples without a row of their position and step.
        repeated: rows beyond the first of an expected sample.
        misplaced: rows whose id or step differs from the order's at their position.
        examples: descriptions of the first differences.
    """

    rows: int = 0
    missing: int = 0
    repeated: int = 0
    misplaced: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """True if the rows are the expected samples, each once."""
        return self.missing == self.repeated == self.misplaced == 0


def compare(rows: pa.Table, order: Order, global_batch: int, start: int, stop: int) -> Comparison:
    """Compare the rows of steps ``start`` to ``stop`` (exclusive) with the order; its samples are held in memory."""
    return compare_positions(rows, order, global_batch, start * global_batch, stop * global_batch)


def compare_positions(rows: pa.Table, order: Order, global_batch: int, low: int, high: int) -> Comparison:
    """Compare rows with the order's positions ``low`` to ``high`` (exclusive)."""
    position, ids, step = (rows[name].to_numpy() for name in ("position", "id", "step"))
    expected = order.slice(low, high).sample_id
    if len(position) == high - low and _is_exact(position, ids, step, expected, global_batch, low):
        return Comparison(len(position))
    correct = (position >= low) & (position < high) & (position // global_batch == step)
    correct[correct] = expected[position[correct] - low] == ids[correct]
    counts = np.bincount(position[correct] - low, minlength=len(expected))
    result = Comparison(len(position), int((counts == 0).sum()), int((counts - 1).clip(0).sum()), int((~correct).sum()))
    examples = []
    for row in np.flatnonzero(~correct)[:EXAMPLES].tolist():
        place = int(position[row])
        inside = low <= place < high
        has = f"sample {expected[place - low]} in step {place // global_batch}" if inside else "another step"
        examples.append(f"step {step[row]} saw sample {ids[row]} at position {place}, where the order has {has}")
    for place in np.flatnonzero(counts == 0)[:EXAMPLES].tolist():
        at = low + place
        examples.append(f"sample {expected[place]} at position {at}, step {at // global_batch}: not seen")
    for place in np.flatnonzero(counts > 1)[:EXAMPLES].tolist():
        examples.append(f"sample {expected[place]} at position {low + place}: seen {counts[place]} times")
    result.examples = examples[:EXAMPLES]
    return result


def _is_exact(
    position: np.ndarray, ids: np.ndarray, step: np.ndarray, expected: np.ndarray, global_batch: int, low: int
) -> bool:
    """Return True if the rows are the expected samples, sorted by position; cheaper than counting."""
    places = np.arange(low, low + len(position))
    pairs = (position, places), (ids, expected), (step, places // global_batch)
    return all(np.array_equal(one, other) for one, other in pairs)
