"""Statistics of convolutions after quantization (BatchNorm re-estimation: Li et al. 2021, AIMET's QAT guide).

Rounding moves the mean and the variance of each output channel of a convolution. Its BatchNorm, which is folded, would
have removed that. Here each channel gets a factor and a bias so that its mean and variance over the calibration images
are those of the float model. The factor goes into the weight and its scale: the rounded numbers stay the same. Where a
layer has one scale for all channels, only the mean is corrected (bias correction: Nagel et al. 2019, section 4.2).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

WIDEST = 2.0  # a factor is between 1 / WIDEST and WIDEST: beyond, the channel is noise
EPSILON = 1e-3  # BatchNorm's epsilon, as a share of the layer's mean variance


@dataclass
class _Moments:
    """Sums over images of a layer's output by channel, fp64 ``[C]``, and the number of values."""

    first: torch.Tensor | float = 0.0
    second: torch.Tensor | float = 0.0
    count: int = 0

    def add(self, output: torch.Tensor) -> None:
        """Count ``output``, ``[B, C, H, W]``."""
        values = output.double()
        self.first = self.first + values.sum((0, 2, 3))
        self.second = self.second + values.square().sum((0, 2, 3))
        self.count += output.numel() // output.shape[1]

    def mean_and_variance(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return both, fp64 ``[C]``."""
        mean = torch.as_tensor(self.first) / self.count
        return mean, (torch.as_tensor(self.second) / self.count - mean.square()).clamp_min(0)


@torch.no_grad()
def reestimate_norms(
    quantized: nn.Module, floats: nn.Module, names: Sequence[str], runs: Sequence[Callable[[nn.Module], object]]
) -> list[str]:
    """Correct the convolutions called ``names`` of ``quantized`` in place; return the names of those corrected.

    Each layer is measured behind corrected ones: while images run, every output is corrected by the statistics of its
    own batch, as a BatchNorm in training does.

    Args:
        floats: the same model in floats, with the same names.
        runs: one for each batch of images: runs it through a model.
    """
    done = [name for name in names if _can_be_corrected(quantized.get_submodule(name))]
    ours, theirs = ({name: _Moments() for name in done} for _ in range(2))
    for run in runs:
        batch = {name: _Moments() for name in done}
        with _hooks(floats, {name: _count(batch[name], theirs[name]) for name in done}):
            run(floats)
        with _hooks(quantized, {name: _correct(batch[name], ours[name]) for name in done}):
            run(quantized)
    for name in done:
        layer = quantized.get_submodule(name)
        factor, shift = _factor_and_shift(ours[name], theirs[name], _is_per_channel(layer))
        if _is_per_channel(layer):
            layer.weight.mul_(factor.reshape(-1, 1, 1, 1))
            layer.weight_quantizer.scale.mul_(factor.to(layer.weight_quantizer.scale.dtype))
        layer.bias.mul_(factor).add_(shift)
    return done


def _can_be_corrected(layer: nn.Module) -> bool:
    """Return whether a layer is a convolution with a bias and a quantized weight."""
    return isinstance(layer, nn.Conv2d) and layer.bias is not None and _quantizer(layer) is not None


def _is_per_channel(layer: nn.Module) -> bool:
    return getattr(_quantizer(layer), "axis", -1) == 0


def _quantizer(layer: nn.Module) -> nn.Module | None:
    return getattr(layer, "weight_quantizer", None)


def _factor_and_shift(ours: _Moments, theirs: _Moments, per_channel: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the fp32 factor and bias, ``[C]``, that give the values of ``ours`` the statistics of ``theirs``.

    Args:
        per_channel: whether channels may have factors; else these are 1.
    """
    (mean, variance), (wanted_mean, wanted) = ours.mean_and_variance(), theirs.mean_and_variance()
    least = EPSILON * wanted.mean() + torch.finfo(torch.float64).tiny
    factor = ((wanted + least) / (variance + least)).sqrt().clamp(1 / WIDEST, WIDEST)
    factor = factor if per_channel else torch.ones_like(factor)
    return factor.float(), (wanted_mean - factor * mean).float()


def _count(*moments: _Moments) -> Callable:
    def hook(layer: nn.Module, inputs: tuple, output: torch.Tensor) -> None:
        """Count the output."""
        for each in moments:
            each.add(output)

    return hook


def _correct(wanted: _Moments, ours: _Moments) -> Callable:
    def hook(layer: nn.Module, inputs: tuple, output: torch.Tensor) -> torch.Tensor:
        """Count the output, and return it with the statistics of ``wanted``."""
        ours.add(output)
        own = _Moments()
        own.add(output)
        factor, shift = _factor_and_shift(own, wanted, _is_per_channel(layer))
        return output * factor.reshape(-1, 1, 1).to(output) + shift.reshape(-1, 1, 1).to(output)

    return hook


@contextlib.contextmanager
def _hooks(model: nn.Module, hooks: dict[str, Callable]):
    with contextlib.ExitStack() as stack:
        for name, hook in hooks.items():
            stack.callback(model.get_submodule(name).register_forward_hook(hook).remove)
        yield
