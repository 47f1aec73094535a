"""Write the samples of each step into the run's ledger."""

from __future__ import annotations

import numpy as np

from radioplat.data.batch import Batch
from radioplat.data.ledger.ledger import Ledger
from radioplat.training.hooks.step_hook import StepHook
from radioplat.training.hooks.step_record import StepRecord
from radioplat.training.hooks.step_sums import StepSums


class LedgerRows(StepHook):
    """Record each micro-batch as consumed; record those of a skipped step also as rejected, with the reason.

    Args:
        sums: knows which losses of a micro-batch were not finite.
    """

    name = "ledger"

    def __init__(self, ledger: Ledger, rank: int, sums: StepSums) -> None:
        self._ledger, self._rank, self._sums = ledger, rank, sums
        self._step: list[tuple[np.ndarray, np.ndarray, int]] = []  # positions, ids, micro-batch

    def begin_step(self, step: int) -> None:
        """Discard the samples remembered for the previous step."""
        self._step = []

    def end_micro_batch(self, step: int, batch: Batch) -> None:
        """Record the samples of ``batch`` as consumed and remember them until the end of the step."""
        self._ledger.record(step, batch)
        self._step.append((batch.position, batch.sample_id, batch.micro_batch))

    def end_step(self, record: StepRecord) -> None:
        """Record the step's samples as rejected if the step was skipped."""
        for positions, ids, micro_batch in self._step if record.skipped else ():
            terms = ", ".join(self._sums.not_finite_in(micro_batch)) if record.not_finite else ""
            reason = f"non_finite: {terms}" if terms else record.decision.reason
            self._ledger.rejected(record.step, self._rank, positions, ids, [reason] * len(ids))

    def taken_back(self, trail: list[tuple[int, np.ndarray, np.ndarray]], first: int) -> None:
        """Record the samples of a roll-back's ``trail`` from step ``first`` on as rejected: training skips them."""
        for step, positions, ids in trail:
            if step >= first:
                self._ledger.rejected(step, self._rank, positions, ids, ["rolled_back"] * len(ids))

    def flush(self) -> OSError | None:
        """Write all rows to disk. If that fails, return the error and keep the rows for the next call."""
        try:
            self._ledger.flush()
        except OSError as error:
            return error
        return None
