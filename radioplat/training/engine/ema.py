"""The student's moving average: one more copy of the fp32 weights, cut up as ZeRO cuts the optimizer's."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from radioplat.training.engine import deepspeed_compat


class Ema:
    """``average = decay * average + (1 - decay) * weights``, once per optimizer step, from the starting weights on.

    A rank averages the pieces that its optimizer moves, so nothing is sent until a checkpoint gathers it. BatchNorm
    statistics are averaged with the weights that they belong to.
    """

    def __init__(
        self, engine: Any, names: dict[str, nn.Parameter], statistics: dict[str, torch.Tensor], decay: float
    ) -> None:
        """Start at the present weights.

        Args:
            names: the trainable parameters, by the student's names.
            statistics: fp32 buffers that move with training, equal on all ranks, by the student's names.
        """
        self._engine, self._names, self._decay = engine, names, decay
        self._masters = deepspeed_compat.masters(engine)
        self._average = [tensor.detach().clone() for tensor in self._masters]
        self._statistics = {name: value.clone() for name, value in statistics.items()}

    @torch.no_grad()
    def step(self, statistics: dict[str, torch.Tensor]) -> None:
        """Follow an update that was made; not to be called after a step that was skipped."""
        torch._foreach_lerp_(self._average, self._masters, 1 - self._decay)
        for name, value in statistics.items():
            self._statistics[name].lerp_(value, 1 - self._decay)

    def whole(self) -> dict[str, torch.Tensor]:
        """The averages by the student's names, fp32, on the CPU; every rank must call this."""
        statistics = {name: value.cpu().clone() for name, value in self._statistics.items()}
        return {**deepspeed_compat.gather_beside(self._engine, self._names, self._average), **statistics}

    @torch.no_grad()
    def copy_into(self, tensors: dict[str, torch.Tensor]) -> None:
        """Copy the averages into those of ``tensors``, by the student's names, that have one; every rank must call it.

        Rounded to their dtype, and on their device.
        """
        names = {name: parameter for name, parameter in self._names.items() if name in tensors}
        deepspeed_compat.copy_beside(self._engine, names, self._average, tensors)
        for name, value in self._statistics.items():
            if name in tensors:
                tensors[name].copy_(value)

    def load(self, state: dict[str, torch.Tensor]) -> None:
        """Inverse of :meth:`whole`, at any world size and stage; what ``state`` lacks is left as it is."""
        deepspeed_compat.scatter_beside(self._engine, self._names, self._average, state)
        for name in self._statistics:
            if name in state:
                self._statistics[name] = state[name].clone()
