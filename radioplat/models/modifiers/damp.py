"""DAMP: multiplicative noise on the weights of each forward (Trinh et al. 2024, "multiplicative weight perturbations").

``L(w * xi)`` with xi ~ N(1, s^2) for every weight, drawn anew for each micro-batch from torch's generator, which the
worker seeds by step and micro-batch. The gradient reaches w through the product. The noise is drawn where a layer
uses its weight, inside a block, so that a block that is recomputed in backward draws the same noise again.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from radioplat.models.modifiers.spectral import SpectralWeight


class NoisyLinear(nn.Linear):
    """A linear layer with noise on its weight while training; tensor names are those of ``nn.Linear``."""

    noise: float

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the layer; while training, with noise on its weight."""
        return F.linear(x, _noisy(self), self.bias)


class NoisyConv2d(nn.Conv2d):
    """A convolution with noise on its weight while training."""

    noise: float

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the convolution; while training, with noise on its weight."""
        return self._conv_forward(x, _noisy(self), self.bias)


def _noisy(layer: NoisyLinear | NoisyConv2d) -> torch.Tensor:
    weight = layer.weight
    return weight * (1 + layer.noise * torch.randn_like(weight)) if layer.training and layer.noise else weight


def add_weight_noise(module: nn.Module, spread: float) -> int:
    """Make the linear layers and convolutions of ``module`` noisy, in place; return how many there are.

    Args:
        spread: standard deviation of xi.
    """
    count = 0
    for layer in module.modules():
        if type(layer) in _NOISY:
            layer.__class__ = _NOISY[type(layer)]
        elif not isinstance(layer, SpectralWeight):
            continue
        layer.noise = spread
        count += 1
    return count


_NOISY: dict[type, type] = {nn.Linear: NoisyLinear, nn.Conv2d: NoisyConv2d}
