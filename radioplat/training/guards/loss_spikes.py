"""Steps whose loss jumps: left out, or taken back together with all since the last checkpoint.

The roll-back is that of PaLM (Chowdhery et al. 2022, section 5.1): begin again from a checkpoint before the spike, and
leave out the batches that were seen between it and the end of the spike. There the same batches, met by other weights,
did no harm: it is the two together that do.
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
from radioplat.errors import TrainingError
from radioplat.spec.schema.train import SpikeAction, SpikeConfig
from radioplat.training.hooks.step_hook import StepHook
from radioplat.training.hooks.step_record import CONTINUE, StepDecision, StepRecord

Trail = list[tuple[int, np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class RollBack:
    """The order to resume from the last checkpoint after a loss spike.

    Attributes:
        step: the first that is taken.
        count: roll-backs of the run, this one included.
        loss: that jumped.
        trail: what this rank consumed since that checkpoint, or from further back: step, positions, ids.
        quarantined: teachers that are not asked any more; those of the checkpoint may be fewer.
    """

    step: int
    count: int
    loss: float
    trail: Trail
    quarantined: frozenset[str] = frozenset()


class SpikeGuard(StepHook):
    """Compares each step's loss with the median of those before it; the same on every rank, as the losses are.

    Args:
        micro_batches: real ones of a step, over all ranks.
        device: of this rank's messages.

    Attributes:
        count: roll-backs of the run so far.
        trail: what this rank consumed since the checkpoint before the last; only where spikes are rolled back.
    """

    name = "loss_spikes"

    def __init__(
        self, config: SpikeConfig, micro_batches: int = 1, device: torch.device | str = "cpu"
    ) -> None:
        self._config, self._micro_batches, self._device = config, micro_batches, device
        self._losses: list[float] = []
        self.count = 0
        self.trail: Trail = []
        self._saved_at = 0

    @property
    def rolls_back(self) -> bool:
        """Whether a spike takes back the steps since the last checkpoint."""
        return self._config.action is SpikeAction.rollback

    def before_update(self, record: StepRecord) -> StepDecision:
        """Where spikes are skipped: compare the loss of the whole step, whose weights have not moved yet."""
        if self._config.action is not SpikeAction.skip_step:
            return CONTINUE
        mine = torch.tensor([record.values.get("loss", 0.0)], dtype=torch.float64, device=self._device)
        jumps = self._agreed(self.is_spike(collectives.total(mine).item() / self._micro_batches))
        return StepDecision("its loss jumped", "loss_spike") if jumps else CONTINUE

    def end_micro_batch(self, step: int, batch: Batch) -> None:
        """Remember a micro-batch, in case its step is taken back."""
        if self.rolls_back:
            self.trail.append((step, batch.position.copy(), batch.sample_id.copy()))

    def state_dict(self) -> dict[str, Any]:
        """Losses of the last steps that counted, oldest first, [] where spikes are not looked for; the count."""
        return {"recent_losses": list(self._losses), "rollbacks": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore it; the window may be shorter now."""
        self._losses, self.count = list(state["recent_losses"])[-self._config.window :], state["rollbacks"]

    def is_spike(self, loss: float) -> bool:
        """Whether ``loss`` is more than ``factor`` times the median of the last ``window`` steps that counted.

        False until there have been so many.
        """
        if self._config.action is SpikeAction.none or len(self._losses) < self._config.window:
            return False
        return math.isfinite(loss) and loss > self._config.factor * statistics.median(self._losses)

    def must_roll_back(self, loss: float) -> bool:
        """Judge the loss of a step that moved the weights; one that stays is counted. The same on every rank."""
        if self.rolls_back and self._agreed(self.is_spike(loss)):
            return True
        if self._config.action is not SpikeAction.none:
            self._losses = [*self._losses, loss][-self._config.window :]
        return False

    def saved(self, steps: int) -> None:
        """A checkpoint of ``steps`` steps was given to be written: what is behind the one before it stays.

        Should it fail, the one before it is gone back to.
        """
        self.trail = [entry for entry in self.trail if entry[0] >= self._saved_at]
        self._saved_at = steps

    def roll_back(self, record: StepRecord, quarantined: Iterable[str]) -> RollBack:
        """Count a roll-back of ``record``'s step, whose loss jumped; every rank calls it.

        Raises:
            TrainingError: it would be one too many.
        """
        loss = record.values["loss"]
        if self.count >= self._config.max_rollbacks:
            error = TrainingError(
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
        """Whether it is so on any rank."""
        return bool(collectives.maximum(torch.tensor([float(mine)], device=self._device)).item())
