"""Statistics of a loss that rest during an optimizer step and move once at its end, whatever the cut of the batch."""

from __future__ import annotations

import torch
from torch import nn


class Running(nn.Module):
    """Named float64 buffers, and beside each the sum of what this rank's micro-batches add to it in this step.

    ``forward`` reads the buffers as the previous step left them and calls :meth:`add`. At the end of the step
    :class:`radioplat.objectives.loss_state.LossState` adds the sums of all ranks and calls :meth:`move`.

    Args:
        shapes: of the buffers, by name; they begin at zero.

    Attributes:
        counting: whether the micro-batch at hand counts; padding does not.
    """

    def __init__(self, **shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.counting = True
        for name, shape in shapes.items():
            self.register_buffer(name, torch.zeros(shape, dtype=torch.float64))
        self._sums: dict[str, torch.Tensor] = {}

    def add(self, name: str, value: torch.Tensor) -> None:
        """Add ``value`` to what the buffer ``name`` is moved by at the end of the step."""
        if self.counting and self.training:
            self._sums[name] = self._sum(name) + value.detach().double()

    def sums(self) -> dict[str, torch.Tensor]:
        """What this rank has added in this step, by buffer."""
        return {name: self._sum(name) for name in self._buffers}

    def clear(self) -> None:
        """Forget the sums."""
        self._sums.clear()

    def move(self, sums: dict[str, torch.Tensor]) -> None:
        """End of a step; ``sums`` are those of all ranks. Here: everything seen so far counts alike."""
        for name, value in sums.items():
            self._buffers[name] += value

    def _sum(self, name: str) -> torch.Tensor:
        found = self._sums.get(name)
        return torch.zeros_like(self._buffers[name]) if found is None else found

    def _apply(self, fn, recurse: bool = True):
        # A bf16 engine casts every buffer of the module. These stay as they are, and follow to the device only.
        exact = dict(self._buffers)
        super()._apply(fn, recurse)
        for name, value in exact.items():
            self._buffers[name] = value.to(self._buffers[name].device)
        return self
