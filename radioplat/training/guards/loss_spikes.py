"""Steps whose loss jumps: left out, or taken back together with all since the last checkpoint.

The roll-back is that of PaLM (Chowdhery et al. 2022, section 5.1): begin again from a checkpoint before the spike, and
leave out the batches that were seen between it and the end of the spike. There the same batches, met by other weights,
did no harm: it is the two together that do.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from radioplat.errors import TrainingError
from radioplat.spec.schema.train import SpikeAction, SpikeConfig

Trail = list[tuple[int, np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class RollBack:
    """What a worker goes on with from the last checkpoint.

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


class SpikeGuard:
    """Compares each step's loss with the median of those before it; the same on every rank, as the losses are.

    Args:
        losses: of the last steps that counted, oldest first; from a checkpoint.
        count: roll-backs so far.

    Attributes:
        tripped: whether this step is left out as a spike.
        trail: what this rank consumed since the checkpoint before the last; only where spikes are rolled back.
    """

    def __init__(self, config: SpikeConfig, losses: Sequence[float], count: int) -> None:
        self._config = config
        self._losses = list(losses)[-config.window :]
        self.count = count
        self.tripped = False
        self.trail: Trail = []
        self._saved_at = 0

    @property
    def skips(self) -> bool:
        """Whether a step's loss has to be known before its weights move."""
        return self._config.action is SpikeAction.skip_step

    @property
    def rolls_back(self) -> bool:
        """Whether what was consumed since the last checkpoint has to be remembered."""
        return self._config.action is SpikeAction.rollback

    @property
    def losses(self) -> list[float]:
        """For a checkpoint; [] where spikes are not looked for."""
        return list(self._losses)

    def is_spike(self, loss: float) -> bool:
        """Whether ``loss`` is more than ``factor`` times the median of the last ``window`` steps that counted.

        False until there have been so many.
        """
        if self._config.action is SpikeAction.none or len(self._losses) < self._config.window:
            return False
        return math.isfinite(loss) and loss > self._config.factor * statistics.median(self._losses)

    def counted(self, loss: float) -> None:
        """A step with this loss moved the weights and stays."""
        if self._config.action is not SpikeAction.none:
            self._losses = [*self._losses, loss][-self._config.window :]

    def consumed(self, step: int, positions: np.ndarray, ids: np.ndarray) -> None:
        """Remember a micro-batch, in case its step is taken back."""
        if self.rolls_back:
            self.trail.append((step, positions.copy(), ids.copy()))

    def saved(self, steps: int) -> None:
        """A checkpoint of ``steps`` steps was given to be written: what is behind the one before it stays.

        Should it fail, the one before it is gone back to.
        """
        self.trail = [entry for entry in self.trail if entry[0] >= self._saved_at]
        self._saved_at = steps

    def rolled(self, step: int, loss: float) -> int:
        """Count a roll-back.

        Raises:
            TrainingError: it would be one too many.
        """
        if self.count >= self._config.max_rollbacks:
            raise TrainingError(
                f"step {step}: the loss jumped to {loss:.4g}, and the run was rolled back {self.count} times already",
                where="train.spike.max_rollbacks",
                hint="Lower train.optim.lr or train.clip_grad_norm, or allow more.",
            )
        self.count += 1
        return self.count
