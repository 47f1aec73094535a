"""The student's moving average: one more copy of the fp32 weights, cut up as ZeRO cuts the optimizer's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from radioplat.training.engine import deepspeed_compat
from radioplat.training.hooks.step_hook import StepHook
from radioplat.training.hooks.step_record import StepRecord


class Ema(StepHook):
    """``average = decay * average + (1 - decay) * weights``, once per optimizer step, from the starting weights on.

    A rank averages the pieces that its optimizer moves, so nothing is sent until a checkpoint gathers it. BatchNorm
    statistics are averaged with the weights that they belong to.
    """

    name = "ema"

    def __init__(
        self,
        engine: Any,
        names: dict[str, nn.Parameter],
        statistics: Callable[[], dict[str, torch.Tensor]],
        decay: float,
    ) -> None:
        """Start at the present weights.

        Args:
            names: the trainable parameters, by the student's names.
            statistics: returns fp32 buffers that move with training, equal on all ranks, by the student's names.
        """
        self._engine, self._names, self._decay, self._present = engine, names, decay, statistics
        self._masters = deepspeed_compat.masters(engine)
        self._average = [tensor.detach().clone() for tensor in self._masters]
        self._statistics = {name: value.clone() for name, value in statistics().items()}

    def end_step(self, record: StepRecord) -> None:
        """See :meth:`step`."""
        if record.moved:
            self.step()

    @torch.no_grad()
    def step(self) -> None:
        """Follow an update of the weights."""
        torch._foreach_lerp_(self._average, self._masters, 1 - self._decay)
        for name, value in self._present().items():
            self._statistics[name].lerp_(value, 1 - self._decay)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The averages by the student's names, fp32, on the CPU; every rank must call this."""
        statistics = {name: value.cpu().clone() for name, value in self._statistics.items()}
        return {**deepspeed_compat.gather_values(self._engine, self._names, self._average), **statistics}

    @torch.no_grad()
    def copy_into(self, tensors: dict[str, torch.Tensor]) -> None:
        """Copy the averages into those of ``tensors``, by the student's names, that have one; every rank must call it.

        Rounded to their dtype, and on their device.
        """
        names = {name: parameter for name, parameter in self._names.items() if name in tensors}
        deepspeed_compat.copy_values(self._engine, names, self._average, tensors)
        for name, value in self._statistics.items():
            if name in tensors:
                tensors[name].copy_(value)

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Restore it at any world size and stage; what ``state`` lacks is left as it is."""
        deepspeed_compat.scatter_values(self._engine, self._names, self._average, state)
        for name in self._statistics:
            if name in state:
                self._statistics[name] = state[name].clone()
