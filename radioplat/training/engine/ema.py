"""Exponential moving average of the student: a second copy of the fp32 weights, partitioned like the optimizer's."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from radioplat.training.engine.engine import Engine
from radioplat.training.hooks.step_hook import ShardedHook
from radioplat.training.hooks.step_record import StepRecord


class Ema(ShardedHook):
    """Compute ``average = decay * average + (1 - decay) * weights`` once per optimizer step.

    The average begins with the starting weights. Each rank averages the pieces that its optimizer updates, so nothing
    is communicated until a checkpoint gathers it. BatchNorm statistics are averaged together with the weights.
    """

    name = "ema"

    def __init__(
        self,
        engine: Engine,
        names: dict[str, nn.Parameter],
        statistics: Callable[[], dict[str, torch.Tensor]],
        decay: float,
    ) -> None:
        """Initialize the average with the current weights.

        Args:
            names: the trainable parameters, by the student's names.
            statistics: returns the fp32 buffers that change in training, equal on all ranks, by the student's names.
        """
        self._engine, self._names, self._decay, self._present = engine, names, decay, statistics
        self._masters = engine.masters()
        self._average = [tensor.detach().clone() for tensor in self._masters]
        self._statistics = {name: value.clone() for name, value in statistics().items()}

    def end_step(self, record: StepRecord) -> None:
        """Update the average if the step changed the weights."""
        if record.moved:
            self.step()

    @torch.no_grad()
    def step(self) -> None:
        """Update the average from the current weights and statistics."""
        torch._foreach_lerp_(self._average, self._masters, 1 - self._decay)
        if present := self._present():
            averages = [self._statistics[name] for name in present]
            torch._foreach_lerp_(averages, list(present.values()), 1 - self._decay)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the averages by the student's names, fp32, on the CPU; every rank must call this."""
        return {**self._engine.gather_values(self._names, self._average), **self.small_state()}

    def shards(self) -> list[torch.Tensor]:
        """Return the averages of the weights that this rank's optimizer updates."""
        return list(self._average)

    def small_state(self) -> dict[str, torch.Tensor]:
        """Return the averages of BatchNorm statistics by the student's names."""
        return {name: value.cpu().clone() for name, value in self._statistics.items()}

    @torch.no_grad()
    def copy_into(self, tensors: dict[str, torch.Tensor]) -> None:
        """Copy the averages into ``tensors`` (by the student's names); those without an average are unchanged.

        Every rank must call it. The values are converted to the dtype and device of ``tensors``.
        """
        names = {name: parameter for name, parameter in self._names.items() if name in tensors}
        self._engine.copy_values(names, self._average, tensors)
        if statistics := [name for name in self._statistics if name in tensors]:
            torch._foreach_copy_([tensors[n] for n in statistics], [self._statistics[n] for n in statistics])

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Restore the average at any world size and ZeRO stage; values that ``state`` lacks are unchanged."""
        self._engine.scatter_values(self._names, self._average, state)
        for name in self._statistics:
            if name in state:
                self._statistics[name].copy_(state[name])
