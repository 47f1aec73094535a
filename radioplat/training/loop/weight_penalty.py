"""A penalty on the weights that is part of the loss."""

from __future__ import annotations

import torch
from torch import nn

from radioplat.objectives.objective import Objective
from radioplat.optim.parameter_groups import takes_decay
from radioplat.spec.schema.train import TrainConfig


class Regularizer:
    """``weight * sum |w|`` (L1) or ``weight * sum w^2`` (L2), as Keras and TAO define them.

    Over the trainable weights that weight decay is for: no biases, norms, tokens, position tables or ``skip_names``.
    """

    def __init__(self, module: nn.Module, config: TrainConfig) -> None:
        self._power, self._weight = config.regularizer.power, config.regularizer.weight
        self._weights = [
            p for name, p in module.named_parameters() if p.requires_grad and takes_decay(name, p, config.optim)
        ]

    def __call__(self) -> torch.Tensor:
        """The penalty, a scalar in fp32."""
        sums = [w.float().abs().sum() if self._power == 1 else w.float().square().sum() for w in self._weights]
        return self._weight * torch.stack(sums).sum()


def regularize(module: Objective, config: TrainConfig) -> None:
    """Give ``module`` the penalty that the spec asks for, if any."""
    if config.regularizer.power and config.regularizer.weight:
        module.regularizer = Regularizer(module, config)
