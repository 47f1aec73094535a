"""Running statistics of a loss: constant during an optimizer step and updated at its end, so micro-batches do not
matter."""

from __future__ import annotations

import torch
from torch import nn


class Running(nn.Module):
    """Named float64 buffers, and for each the sum of this rank's contributions in the current step.

    ``forward`` reads the buffers as of the previous step and calls :meth:`add`. At the end of the step
    :class:`radioplat.training.engine.loss_statistics.LossStatistics` adds the sums of all ranks and calls
    :meth:`update`.

    Args:
        shapes: of the buffers, by name; they start at zero.

    Attributes:
        counting: whether the current micro-batch contributes; padding does not.
    """

    def __init__(self, **shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.counting = True
        for name, shape in shapes.items():
            self.register_buffer(name, torch.zeros(shape, dtype=torch.float64))
        self._sums: dict[str, torch.Tensor] = {}

    def count(self, values: dict[str, torch.Tensor]) -> None:
        """Add the ``values`` by buffer to the contributions of this step."""
        for name, value in values.items():
            self.add(name, value)

    def add(self, name: str, value: torch.Tensor) -> None:
        """Add ``value`` to the contributions of buffer ``name`` in this step."""
        if self.counting and self.training:
            self._sums[name] = self._sum(name) + value.detach().double()

    def sums(self) -> dict[str, torch.Tensor]:
        """Return this rank's contributions in this step, by buffer."""
        return {name: self._sum(name) for name in self._buffers}

    def clear(self) -> None:
        """Discard this step's contributions."""
        self._sums.clear()

    def update(self, sums: dict[str, torch.Tensor]) -> None:
        """End a step: add ``sums`` of all ranks to the buffers. All samples have the same weight, however old."""
        for name, value in sums.items():
            self._buffers[name] += value

    def _sum(self, name: str) -> torch.Tensor:
        total = self._sums.get(name)
        return torch.zeros_like(self._buffers[name]) if total is None else total

    def _apply(self, fn, recurse: bool = True):
        # A bf16 engine casts all buffers of the module. These keep their dtype and only move to the device.
        exact = dict(self._buffers)
        super()._apply(fn, recurse)
        for name, value in exact.items():
            self._buffers[name] = value.to(self._buffers[name].device)
        return self
