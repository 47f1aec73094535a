"""What happens when a loss term is NaN or infinite: counted, recorded, decided by all ranks at once.

The same message between the ranks says whether any sample of the step has weight.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from radioplat.common import collectives
from radioplat.data.batch import Batch
from radioplat.errors import TrainingError
from radioplat.objectives.objective import Objective
from radioplat.spec.schema.train import NonFinitePolicy, TrainConfig


class NonFiniteGuard:
    """Watches the terms of every micro-batch.

    Attributes:
        tripped: whether this step has met a non-finite term on any rank.
        has_weight: whether a sample of this step has weight, on any rank, as far as the step was checked.
        events: what this rank saw, for the report: (step, term, sample ids).
    """

    def __init__(self, config: TrainConfig, objective: Objective) -> None:
        self._config, self._objective = config, objective
        self.tripped = self.has_weight = False
        self.events: list[tuple[int, str, list[int]]] = []
        self.reasons: list[str] = []  # why, where this rank knows it
        self._terms: list[str] = []
        self._in_a_row = 0

    def begin_step(self) -> None:
        """Forget the last step's verdict."""
        self.tripped, self.has_weight, self._terms, self.reasons = False, False, [], []

    def check(self, step: int, batch: Batch, losses: dict[str, torch.Tensor]) -> bool:
        """Whether every term is finite on every rank; one trip from the device, and one small all-reduce."""
        names = list(losses)
        found = torch.stack([losses[name].detach().float() for name in names])
        bad = [not math.isfinite(value) for value in found.tolist()]
        weighs = bool(np.any(batch.weight))
        mine = [name for name, wrong in zip(names, bad, strict=True) if wrong]
        if mine:
            self.events += [(step, name, np.asarray(batch.sample_id).tolist()) for name in mine]
        if not collectives.alone():
            flags = torch.tensor([weighs, *bad], dtype=torch.uint8, device=found.device)
            weighs, *bad = collectives.maximum(flags).tolist()
        self.has_weight |= bool(weighs)
        if any(bad):
            self.tripped = True
            self._terms = [name for name, wrong in zip(names, bad, strict=True) if wrong]
        return not self.tripped

    def decide(self, step: int) -> None:
        """Apply the spec's policy at the end of a tripped step; the same on every rank.

        Raises:
            TrainingError: policy ``fail``, or too many such steps in a row.
        """
        self._in_a_row += 1
        why = list(dict.fromkeys(reason for reasons in collectives.gather_objects(self.reasons) for reason in reasons))
        terms = ", ".join(self._terms) + "".join(f"; {reason}" for reason in why)
        policy = self._config.non_finite
        if policy is NonFinitePolicy.fail:
            raise TrainingError(
                f"step {step}: not finite: {terms}",
                where="train.non_finite",
                hint="The samples are in the ledger; skip_step or quarantine_teacher would go on.",
            )
        if policy is NonFinitePolicy.quarantine_teacher:
            teachers = {teacher.name for teacher in self._objective.teachers}  # none in training on labels
            for name in teachers.intersection(t.split("/")[1] for t in self._terms if t.startswith("loss/")):
                self._objective.quarantine(name)
            if teachers and teachers == self._objective.quarantined:
                raise TrainingError(f"step {step}: no teacher is left (not finite: {terms})", where="train.non_finite")
        if self._in_a_row >= self._config.max_non_finite_steps:
            raise TrainingError(
                f"{self._in_a_row} steps in a row were not finite, the last at step {step}: {terms}",
                where="train.max_non_finite_steps",
                hint="Lower train.optim.lr, or check the teacher that is named.",
            )

    def overflowed(self, step: int) -> None:
        """The losses were finite and the gradients were not, so that no weight moved; the same on every rank.

        Raises:
            TrainingError: too many such steps in a row; in fp16 a few are how the loss scale is found.
        """
        self._in_a_row += 1
        if self._in_a_row >= self._config.max_non_finite_steps:
            raise TrainingError(
                f"the gradients of {self._in_a_row} steps in a row were not finite, the last at step {step}",
                where="train.max_non_finite_steps",
                hint="Lower train.optim.lr; in fp16, take bf16, whose range is fp32's.",
            )

    def passed(self) -> None:
        """A step went well."""
        self._in_a_row = 0
