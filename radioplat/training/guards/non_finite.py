"""Skip steps, on all ranks, that have a NaN or infinite loss term or no sample with weight."""

from __future__ import annotations

from typing import Any

import numpy as np

from radioplat.common import collectives
from radioplat.data.batch import Batch
from radioplat.errors import Diverged
from radioplat.objectives.objective import Objective
from radioplat.spec.schema.train import NonFinitePolicy, TrainConfig
from radioplat.training.hooks.step_hook import StepHook
from radioplat.training.hooks.step_record import CONTINUE, StepDecision, StepRecord


class NonFiniteGuard(StepHook):
    """Skip a step in which any term is not finite on any rank, or in which no sample has weight.

    Attributes:
        tripped: True if a term of this step was not finite on any rank.
    """

    name = "non_finite"

    def __init__(self, config: TrainConfig, objective: Objective) -> None:
        self._config, self._objective = config, objective
        self.tripped = self._empty = False
        self._weighted = 0  # samples with weight of this rank, in this step
        self._reasons: list[str] = []  # causes that this rank knows
        self._in_a_row = self._empty_in_a_row = 0

    def begin_step(self, step: int) -> None:
        """Reset the decision of the last step."""
        self.tripped = self._empty = False
        self._weighted, self._reasons = 0, []

    def begin_micro_batch(self, step: int, batch: Batch) -> None:
        """Count the samples that have weight."""
        self._weighted += int(np.count_nonzero(batch.weight))

    def no_answer(self, reason: str) -> None:
        """Record why a teacher gave no answer in this step; its terms will be NaN."""
        self._reasons.append(reason)

    def sums(self) -> dict[str, float]:
        """Return the number of this rank's samples that have weight."""
        return {"weighted": self._weighted}

    def before_update(self, record: StepRecord) -> StepDecision:
        """Skip the step if a term was not finite in any forward of any rank, or if no sample has weight."""
        if record.not_finite:
            self.tripped = True
            return StepDecision("a loss term was not finite")
        if not record.sums[f"{self.name}/weighted"]:
            # Even with zero gradients an update would change weights, by weight decay and by the moments.
            self._empty = True
            self._empty_in_a_row += 1
            in_a_row = f" ({self._empty_in_a_row} such steps in a row)" if self._empty_in_a_row > 1 else ""
            return StepDecision(f"none of its samples has weight{in_a_row}")
        return CONTINUE

    def end_step(self, record: StepRecord) -> None:
        """Apply the spec's policy to a step that was not finite; the same on every rank.

        Raises:
            Diverged: on every rank: with policy ``fail``, if no teacher remains, or if too many steps in a row
                were not finite or had no sample with weight.
        """
        if not self._empty:
            self._empty_in_a_row = 0
        with collectives.mark_agreed():
            if self._empty_in_a_row >= self._config.max_non_finite_steps:
                raise Diverged(
                    f"{self._empty_in_a_row} steps in a row had no sample with weight, the last is step {record.step}",
                    where="train.max_non_finite_steps",
                    hint="The ledger has the reason for each sample: see `radioplat ledger`.",
                )
            if self.tripped:
                self._decide(record)
            elif record.moved:
                self._in_a_row = 0
            elif not record.skipped:
                self._overflowed(record.step)

    def state_dict(self) -> dict[str, Any]:
        """Return the names of the quarantined teachers."""
        return {"quarantined": sorted(self._objective.quarantined)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Quarantine the teachers of the checkpoint again."""
        for name in state["quarantined"]:
            self._objective.quarantine(name)

    def _decide(self, record: StepRecord) -> None:
        """Apply the policy after a loss term was not finite.

        Raises:
            Diverged: as in :meth:`end_step`.
        """
        self._in_a_row += 1
        step, bad = record.step, record.not_finite
        reasons = dict.fromkeys(reason for reasons in collectives.gather_objects(self._reasons) for reason in reasons)
        terms = ", ".join(bad) + "".join(f"; {reason}" for reason in reasons)
        policy = self._config.non_finite
        if policy is NonFinitePolicy.fail:
            raise Diverged(
                f"step {step}: not finite: {terms}",
                where="train.non_finite",
                hint="The samples are in the ledger; skip_step or quarantine_teacher would go on.",
            )
        if policy is NonFinitePolicy.quarantine_teacher:
            teachers = {teacher.name for teacher in self._objective.teachers}  # none in training on labels
            for name in teachers.intersection(t.split("/")[1] for t in bad if t.startswith("loss/")):
                self._objective.quarantine(name)
            if teachers and teachers == self._objective.quarantined:
                raise Diverged(f"step {step}: no teacher is left (not finite: {terms})", where="train.non_finite")
        if self._in_a_row >= self._config.max_non_finite_steps:
            raise Diverged(
                f"{self._in_a_row} steps in a row were not finite, the last at step {step}: {terms}",
                where="train.max_non_finite_steps",
                hint="Lower train.optim.lr, or check the teacher that is named.",
            )

    def _overflowed(self, step: int) -> None:
        """Count a step with finite losses but non-finite gradients; fp16 has a few while it searches the loss scale.

        Raises:
            Diverged: too many steps in a row were not finite.
        """
        self._in_a_row += 1
        if self._in_a_row >= self._config.max_non_finite_steps:
            raise Diverged(
                f"the gradients of {self._in_a_row} steps in a row were not finite, the last at step {step}",
                where="train.max_non_finite_steps",
                hint="Lower train.optim.lr; in fp16, take bf16, whose range is fp32's.",
            )
