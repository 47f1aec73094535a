"""Training after pruning or low-rank decomposition, with the same teachers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from radioplat.spec.ranges import number


class RetrainMode(str, Enum):
    """Initial weights and learning-rate schedule of a retraining (Renda et al. 2020)."""

    finetune = "finetune"  # current weights, a constant low learning rate
    lr_rewind = "lr_rewind"  # current weights, the schedule of train.optim from its beginning
    weight_rewind = "weight_rewind"  # remaining weights take their values in rewind_to; schedule as lr_rewind


@dataclass
class RetrainConfig:
    """Length and schedule of a retraining; none if neither ``epochs`` nor ``steps`` is set."""

    epochs: int | None = number(None, at_least=1)  # length in epochs
    steps: int | None = number(None, at_least=1)  # length in optimizer steps
    mode: RetrainMode = RetrainMode.finetune
    # learning rate; default: train.optim.lr, for finetune a tenth of it; if that is unset too, by what the
    # student starts
    # from
    lr: float | None = number(None, above=0)
    rewind_to: str | None = None  # for weight_rewind: an earlier checkpoint of the same run

    @property
    def wanted(self) -> bool:
        """True if the spec asks for retraining."""
        return self.epochs is not None or self.steps is not None
