"""Training that follows pruning or decomposition, against the same teachers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from radioplat.spec.ranges import number


class RetrainMode(str, Enum):
    """Where weights and rate begin (Renda et al. 2020)."""

    finetune = "finetune"  # the weights as they are, at one low rate
    lr_rewind = "lr_rewind"  # the weights as they are, under the schedule of train.optim from its beginning
    weight_rewind = "weight_rewind"  # what stays goes back to its values in rewind_to; the schedule as lr_rewind


@dataclass
class RetrainConfig:
    """How long to train on, and how; nothing is trained where neither ``epochs`` nor ``steps`` is given."""

    epochs: int | None = number(None, at_least=1)
    steps: int | None = number(None, at_least=1)
    mode: RetrainMode = RetrainMode.finetune
    lr: float | None = number(None, above=0)  # default: train.optim.lr, of finetune a tenth of it
    rewind_to: str | None = None  # of weight_rewind: an earlier checkpoint of the same run

    @property
    def wanted(self) -> bool:
        """Whether there is any."""
        return self.epochs is not None or self.steps is not None
