"""A module that rounds a tensor to a number format with a trainable scale."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from radioplat.models.quantized.fake_quantize import NumberFormat, effective_scale, fake_quantize

# The least amax of a channel as a share of the largest: its values are rounded 2 ** 12 times as finely all the same.
LEAST_SHARE = 2.0**-12


class Quantizer(nn.Module):
    """Rounds its input; the identity if ``enabled`` is False.

    ``scale`` is a parameter, ``[1]``, ``[channels]`` or ``[channels, blocks]``: training updates it with LSQ's
    gradient, and under Adam and LAMB by a step relative to itself (:mod:`radioplat.optim.quantizer_scale_steps`),
    because it is small (about 0.001 for a weight). The operator uses its absolute value; :meth:`settled_scale` is the
    value that an export writes.

    Args:
        format: number format to round to.
        channels: how many scales; None for a single one.
        axis: the dimension that the scales belong to.
        blocks: how many blocks of a channel have a scale each, for matrices ``[channels, n]``; None for one of all.
    """

    def __init__(
        self, format: NumberFormat | str, channels: int | None = None, axis: int = 0, blocks: int | None = None
    ) -> None:
        super().__init__()
        self.format = NumberFormat(format)
        self.axis = -1 if channels is None else axis
        self.enabled = True
        shape = [channels or 1] + ([] if blocks is None else [blocks])
        self.scale = nn.Parameter(torch.ones(shape, dtype=torch.float32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``x`` rounded, in its own dtype."""
        return fake_quantize(x, self.scale, self.axis, self.format) if self.enabled else x

    def follow(self, leader: Quantizer) -> None:
        """Use the scale of ``leader``, which rounds the same tensor to the same format, instead of an own one.

        The leader is not registered as a submodule, so parameters and state dict have the scale once.
        """
        del self.scale
        self.__dict__["leader"] = leader

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        """Return the leader's scale, or what ``nn.Module`` has registered."""
        if name == "scale" and "leader" in self.__dict__:
            return self.__dict__["leader"].scale
        return super().__getattr__(name)

    @torch.no_grad()
    def set_amax(self, amax: torch.Tensor) -> None:
        """Set the scale so that the format's highest value is ``amax``, float of the shape of the scales.

        A channel of zeros alone gets the largest amax of the others (any scale is right for zeros, and a tiny one would
        not survive half precision); where all are zero, 1. No other is below :data:`LEAST_SHARE` of the largest: a
        channel that training made all but zero would need a scale that fp16 does not have.
        """
        amax = amax.detach().float().reshape(self.scale.shape)
        most = amax.max()
        amax = torch.where(amax > 0, amax.clamp_min(LEAST_SHARE * most), most if most > 0 else torch.ones_like(most))
        self.scale.copy_(amax / self.format.highest)

    @property
    def amax(self) -> torch.Tensor:
        """The largest magnitude that is not clipped, fp32 of the shape of the scales."""
        return self.settled_scale() * self.format.highest

    def settled_scale(self) -> torch.Tensor:
        """The positive fp32 scale that the operator divides by."""
        return effective_scale(self.scale.detach())

    def extra_repr(self) -> str:
        """Text shown by ``print``."""
        return f"{self.format.value}, axis={self.axis}, scales={self.scale.numel()}"


def quantizers(module: nn.Module) -> dict[str, Quantizer]:
    """Return all quantizers of ``module``, by name."""
    return {name: m for name, m in module.named_modules() if isinstance(m, Quantizer)}


def count_scales(module: nn.Module) -> int:
    """Return the number of scales of all quantizers of ``module``, each shared one once."""
    scales = {id(quantizer.scale): quantizer.scale.numel() for quantizer in quantizers(module).values()}
    return sum(scales.values())


@contextmanager
def in_float(*modules: nn.Module) -> Iterator[None]:
    """Disable every quantizer in ``modules`` inside the block."""
    enabled = [q for module in modules for q in quantizers(module).values() if q.enabled]
    for quantizer in enabled:
        quantizer.enabled = False
    try:
        yield
    finally:
        for quantizer in enabled:
            quantizer.enabled = True


def settle_scales(module: nn.Module) -> None:
    """Set every quantizer's parameter to the positive scale that its operator divides by."""
    with torch.no_grad():
        for quantizer in quantizers(module).values():
            quantizer.scale.copy_(quantizer.settled_scale())
