"""A penalty on the weights that is part of the loss."""

from __future__ import annotations

import torch

from radioplat.objectives.objective import Objective
from radioplat.optim.parameter_groups import takes_decay
from radioplat.spec.schema.train import TrainConfig


def regularize(module: Objective, config: TrainConfig) -> None:
    """Give ``module`` the penalty that the spec asks for, if any, a scalar in fp32.

    ``weight * sum |w|`` (L1) or ``weight * sum w^2`` (L2), as Keras and TAO define them, over the trainable weights
    that weight decay is for: no biases, norms, tokens, position tables or ``skip_names``.
    """
    power, weight = config.regularizer.power, config.regularizer.weight
    if not (power and weight):
        return
    weights = [p for n, p in module.named_parameters() if p.requires_grad and takes_decay(n, p, config.optim)]

    def penalty() -> torch.Tensor:
        sums = [w.float().abs().sum() if power == 1 else w.float().square().sum() for w in weights]
        return weight * torch.stack(sums).sum()

    module.regularizer = penalty
