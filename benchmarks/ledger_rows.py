"""Rows of a run's ledger as one table in memory, for benchmarks and tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from radioplat.data.ledger.ledger import CONSUMED_SCHEMA, read_rows
from radioplat.data.ledger.lineage import guessed_parts


def read_consumed(directory: str | Path) -> pa.Table:
    """Read the rows of all workers, sorted by attempt, step and position, including replayed steps."""
    order = [(name, "ascending") for name in ("attempt", "step", "position")]
    return read_rows(directory, "consumed", CONSUMED_SCHEMA).sort_by(order)


def effective(consumed: pa.Table, final_step: int | None = None, attempt: int | None = None) -> pa.Table:
    """Select the rows that led to the final checkpoint; see :func:`radioplat.data.ledger.lineage.guessed_parts`.

    Args:
        consumed: of :func:`read_consumed`.
        final_step: the last step, counted from 0; default: the last one of ``attempt``.
        attempt: the one that wrote the checkpoint; default: the last.
    """
    steps, attempts = consumed["step"].to_numpy(), consumed["attempt"].to_numpy()
    spans = {
        a: (int(steps[attempts == a].min()), int(steps[attempts == a].max())) for a in np.unique(attempts).tolist()
    }
    keep = np.zeros(len(consumed), bool)
    for number, start, stop in guessed_parts(spans, None if final_step is None else final_step + 1, attempt):
        keep |= (attempts == number) & (steps >= start) & (steps < stop)
    return consumed.filter(pa.array(keep))
