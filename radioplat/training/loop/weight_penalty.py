"""L1 or L2 penalty on the weights, as a part of the loss."""

from __future__ import annotations

import torch

from radioplat.objectives.objective import Objective
from radioplat.optim.parameter_groups import takes_decay
from radioplat.spec.schema.train import TrainConfig


def regularize(module: Objective, config: TrainConfig) -> None:
    """Set ``module.regularizer`` to a function that computes the spec's penalty, an fp32 scalar, if there is one.

    The penalty is ``weight * sum |w|`` (L1) or ``weight * sum w^2`` (L2), as in Keras and TAO, over the trainable
    weights that weight decay applies to: no biases, norms, tokens, position tables or ``skip_names``.
    """
    power, weight = config.regularizer.power, config.regularizer.weight
    if not (power and weight):
        return
    weights = [p for n, p in module.named_parameters() if p.requires_grad and takes_decay(n, p, config.optim)]

    def penalty() -> torch.Tensor:
        sums = [w.float().abs().sum() if power == 1 else w.float().square().sum() for w in weights]
        return weight * torch.stack(sums).sum()

    module.regularizer = penalty
