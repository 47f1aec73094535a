"""Steps with a loss term that is NaN or infinite, or without any sample of weight: skipped by all ranks at once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from radioplat.common import collectives
from radioplat.data.batch import Batch
from radioplat.errors import TrainingError
from radioplat.objectives.objective import Objective
from radioplat.spec.schema.train import NonFinitePolicy, TrainConfig
from radioplat.training.hooks.step_hook import StepHook
from radioplat.training.hooks.step_record import CONTINUE, StepDecision, StepRecord


class NonFiniteGuard(StepHook):
    """Skips a step in which a term is not finite on any rank, or no sample has weight.

    Attributes:
        tripped: whether a term of this step was not finite, on any rank.
        has_weight: whether a sample of this step has weight, on any rank, as far as the step was checked.
        terms: names of the terms of the present micro-batch that were not finite on this rank.
    """

    name = "non_finite"

    def __init__(self, config: TrainConfig, objective: Objective) -> None:
        self._config, self._objective = config, objective
        self.tripped = self.has_weight = self._empty = False
        self.terms: list[str] = []
        self._reasons: list[str] = []  # why, where this rank knows it
        self._terms_of_step: list[str] = []
        self._in_a_row = self._empty_in_a_row = 0

    def begin_step(self, step: int) -> None:
        """Reset the decision of the last step."""
        self.tripped = self.has_weight = self._empty = False
        self._terms_of_step, self._reasons = [], []

    def begin_micro_batch(self, step: int, batch: Batch) -> None:
        """Reset the terms of the last micro-batch."""
        self.terms = []

    def no_answer(self, reason: str) -> None:
        """A teacher gave no answer in this step, so that its terms will not be finite."""
        self._reasons.append(reason)

    def losses(self, step: int, batch: Batch, losses: Mapping[str, torch.Tensor], last: bool) -> StepDecision:
        """Check every term on every rank; one copy from the device, and one small all-reduce."""
        names = list(losses)
        values = torch.stack([losses[name].detach().float() for name in names])
        bad = [not math.isfinite(value) for value in values.tolist()]
        weighs = bool(np.any(batch.weight))
        self.terms = [name for name, wrong in zip(names, bad, strict=True) if wrong]
        if not collectives.alone():
            flags = torch.tensor([weighs, *bad], dtype=torch.uint8, device=values.device)
            weighs, *bad = collectives.maximum(flags).tolist()
        self.has_weight |= bool(weighs)
        if any(bad):
            self.tripped = True
            self._terms_of_step = [name for name, wrong in zip(names, bad, strict=True) if wrong]
            return StepDecision("a loss term was not finite")
        if last and not self.has_weight:
            # Zero gradients would move weights all the same: by weight decay, and by the moments.
            self._empty = True
            self._empty_in_a_row += 1
            in_a_row = f" ({self._empty_in_a_row} such steps in a row)" if self._empty_in_a_row > 1 else ""
            return StepDecision(f"none of its samples has weight{in_a_row}")
        return CONTINUE

    def end_step(self, record: StepRecord) -> None:
        """Apply the spec's policy; the same on every rank.

        Raises:
            TrainingError: policy ``fail``, no teacher is left, or too many steps in a row moved no weight.
        """
        if not self._empty:
            self._empty_in_a_row = 0
        with collectives.mark_agreed():
            if self.tripped:
                self._decide(record.step)
            elif record.moved:
                self._in_a_row = 0
            elif not record.skipped:
                self._overflowed(record.step)

    def state_dict(self) -> dict[str, Any]:
        """The quarantined teachers."""
        return {"quarantined": sorted(self._objective.quarantined)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Quarantine them again."""
        for name in state["quarantined"]:
            self._objective.quarantine(name)

    def _decide(self, step: int) -> None:
        """A term was not finite."""
        self._in_a_row += 1
        reasons = dict.fromkeys(reason for reasons in collectives.gather_objects(self._reasons) for reason in reasons)
        terms = ", ".join(self._terms_of_step) + "".join(f"; {reason}" for reason in reasons)
        policy = self._config.non_finite
        if policy is NonFinitePolicy.fail:
            raise TrainingError(
                f"step {step}: not finite: {terms}",
                where="train.non_finite",
                hint="The samples are in the ledger; skip_step or quarantine_teacher would go on.",
            )
        if policy is NonFinitePolicy.quarantine_teacher:
            teachers = {teacher.name for teacher in self._objective.teachers}  # none in training on labels
            for name in teachers.intersection(t.split("/")[1] for t in self._terms_of_step if t.startswith("loss/")):
                self._objective.quarantine(name)
            if teachers and teachers == self._objective.quarantined:
                raise TrainingError(f"step {step}: no teacher is left (not finite: {terms})", where="train.non_finite")
        if self._in_a_row >= self._config.max_non_finite_steps:
            raise TrainingError(
                f"{self._in_a_row} steps in a row were not finite, the last at step {step}: {terms}",
                where="train.max_non_finite_steps",
                hint="Lower train.optim.lr, or check the teacher that is named.",
            )

    def _overflowed(self, step: int) -> None:
        """The losses were finite and the gradients were not; in fp16 a few such steps are how the scale is found."""
        self._in_a_row += 1
        if self._in_a_row >= self._config.max_non_finite_steps:
            raise TrainingError(
                f"the gradients of {self._in_a_row} steps in a row were not finite, the last at step {step}",
                where="train.max_non_finite_steps",
                hint="Lower train.optim.lr; in fp16, take bf16, whose range is fp32's.",
            )
