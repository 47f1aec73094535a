"""Detect steps whose loss jumps, and skip them or roll back to the last checkpoint.

The roll-back is that of PaLM (Chowdhery et al. 2022, section 5.1): resume from a checkpoint before the spike, and leave
out the batches between it and the end of the spike. In PaLM, the same batches did no harm when other weights were
trained on them: the spike came from the combination of batches and weights.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from radioplat.common import collectives
from radioplat.data.batch import Batch
from radioplat.errors import Diverged
from radioplat.spec.schema.train import SpikeAction, SpikeConfig
from radioplat.training.hooks.step_hook import StepHook
from radioplat.training.hooks.step_record import CONTINUE, StepDecision, StepRecord

Trail = list[tuple[int, np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class RollBack:
    """Instruction to resume from the last checkpoint after a loss spike.

    Attributes:
        step: the first step to train after the roll-back.
        count: number of roll-backs of the run, including this one.
        loss: the loss that jumped.
        trail: micro-batches that this rank consumed since that checkpoint or earlier: (step, positions, sample ids).
        quarantined: teachers that are no longer used; the checkpoint may have fewer.
    """

    step: int
    count: int
    loss: float
    trail: Trail
    quarantined: frozenset[str] = frozenset()


class SpikeGuard(StepHook):
    """Compare each step's loss with the median of earlier losses; the result is the same on every rank.

    Args:
        device: device of the tensors in collectives.

    Attributes:
        count: number of roll-backs of the run so far.
        trail: micro-batches of this rank since the checkpoint before the last; empty unless spikes are rolled back.
    """

    name = "loss_spikes"

    def __init__(self, config: SpikeConfig, device: torch.device | str = "cpu") -> None:
        self._config, self._device = config, device
        self._losses: list[float] = []
        self.count = 0
        self.trail: Trail = []
        self._saved_at = 0

    @property
    def rolls_back(self) -> bool:
        """True if a spike rolls back the steps since the last checkpoint."""
        return self._config.action is SpikeAction.rollback

    def before_update(self, record: StepRecord) -> StepDecision:
        """If the spec skips spikes: skip the step if its loss over all ranks jumped, before the weights are updated."""
        if self._config.action is not SpikeAction.skip_step:
            return CONTINUE
        jumps = self._agreed(self.is_spike(record.values.get("loss", 0.0)))
        return StepDecision("its loss jumped", "loss_spike") if jumps else CONTINUE

    def end_micro_batch(self, step: int, batch: Batch) -> None:
        """Remember a micro-batch, in case its step is rolled back."""
        if self.rolls_back:
            self.trail.append((step, batch.position.copy(), batch.sample_id.copy()))

    def state_dict(self) -> dict[str, Any]:
        """Return the count of roll-backs and the last losses, oldest first; no losses if the spec ignores spikes."""
        return {"recent_losses": list(self._losses), "rollbacks": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state; losses older than the current window are dropped."""
        self._losses, self.count = list(state["recent_losses"])[-self._config.window :], state["rollbacks"]

    def is_spike(self, loss: float) -> bool:
        """Return True if ``loss`` is more than ``factor`` times the median of the last ``window`` losses.

        Returns False until there are ``window`` losses, and for a loss that is not finite.
        """
        if self._config.action is SpikeAction.none or len(self._losses) < self._config.window:
            return False
        return math.isfinite(loss) and loss > self._config.factor * statistics.median(self._losses)

    def must_roll_back(self, loss: float) -> bool:
        """Return True if a step that moved the weights must be rolled back; otherwise remember its loss.

        The result is the same on every rank; every rank must call it.
        """
        if self.rolls_back and self._agreed(self.is_spike(loss)):
            return True
        if self._config.action is not SpikeAction.none:
            self._losses = [*self._losses, loss][-self._config.window :]
        return False

    def saved(self, steps: int) -> None:
        """Drop the part of the trail before the previous checkpoint, after a checkpoint of ``steps`` steps was saved.

        The trail since the previous checkpoint is kept, because a roll-back uses that one if the new one fails.
        """
        self.trail = [entry for entry in self.trail if entry[0] >= self._saved_at]
        self._saved_at = steps

    def roll_back(self, record: StepRecord, quarantined: Iterable[str]) -> RollBack:
        """Count and return a roll-back of ``record``'s step, whose loss jumped; every rank must call it.

        Raises:
            Diverged: on every rank, if there have already been ``max_rollbacks``.
        """
        loss = record.values["loss"]
        if self.count >= self._config.max_rollbacks:
            error = Diverged(
                f"step {record.step}: the loss jumped to {loss:.4g}, and the run was rolled back {self.count} times "
                "already",
                where="train.spike.max_rollbacks",
                hint="Lower train.optim.lr or train.clip_grad_norm, or allow more.",
            )
            error.agreed = True
            raise error
        self.count += 1
        return RollBack(record.step + 1, self.count, loss, self.trail, frozenset(quarantined))

    def _agreed(self, mine: bool) -> bool:
        """Return True if ``mine`` is True on any rank."""
        return bool(collectives.maximum(torch.tensor([float(mine)], device=self._device)).item())
