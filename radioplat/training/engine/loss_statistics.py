"""Update running statistics of losses once per optimizer step, from all ranks; they are stored in checkpoints."""

from __future__ import annotations

import torch
from torch import nn

from radioplat.common import collectives
from radioplat.common.exact_sums import ExactSum
from radioplat.data.batch import Batch
from radioplat.losses.base.running_statistics import Running
from radioplat.training.hooks.step_hook import StepHook
from radioplat.training.hooks.step_record import StepRecord


class LossStatistics(StepHook):
    """Update every :class:`Running` in ``module`` that has statistics.

    Sums over samples are added over the micro-batches and ranks of a step in float64. The result therefore does not
    depend on the split of a step, except for the order of the additions; with ``exact`` not on that either.
    """

    name = "losses"

    def __init__(self, module: nn.Module, exact: bool = False) -> None:
        self._parts = {n: m for n, m in module.named_modules() if isinstance(m, Running) and m.sums()}
        self._exact = ExactSum(self._packed()) if exact and self._parts else None

    def begin_micro_batch(self, step: int, batch: Batch) -> None:
        """Exclude padding from the statistics."""
        for part in self._parts.values():
            part.counting = batch.micro_batch >= 0

    def pause(self, paused: bool) -> None:
        """Let forwards contribute nothing, or again contribute."""
        for part in self._parts.values():
            part.counting = not paused

    def end_micro_batch(self, step: int, batch: Batch) -> None:
        """Add the sums of this micro-batch exactly."""
        if self._exact is not None:
            self._exact.add(self._packed())
            for part in self._parts.values():
                part.clear()

    def end_step(self, record: StepRecord) -> None:
        """Update the statistics, or discard this step's sums if it was skipped; see :meth:`step`."""
        self.step(commit=not record.skipped)

    def step(self, commit: bool = True) -> None:
        """Update the statistics from the sums of all ranks; if not ``commit``, discard them. All ranks must call it."""
        if not self._parts:
            return
        sums = [part.sums() for part in self._parts.values()]
        if self._exact is None:
            packed = collectives.total(self._packed())
        else:
            packed = self._exact.total(collectives.total)
            self._exact.clear()
        pieces = iter(packed.split([value.numel() for mine in sums for value in mine.values()]))
        for part, mine in zip(self._parts.values(), sums, strict=True):
            total = {name: next(pieces).view(value.shape) for name, value in mine.items()}
            if commit:
                part.update(total)
            part.clear()

    def _packed(self) -> torch.Tensor:
        return torch.cat([value.flatten() for part in self._parts.values() for value in part.sums().values()])

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return all statistics, float64 on the CPU."""
        return {
            f"{place}.{name}": value.detach().cpu().clone()
            for place, part in self._parts.items()
            for name, value in part.named_buffers(recurse=False)
        }

    def load_state_dict(self, tensors: dict[str, torch.Tensor]) -> None:
        """Restore the statistics; a loss of which a buffer is missing or has another shape keeps its zeros."""
        for place, part in self._parts.items():
            mine = {name: tensors.get(f"{place}.{name}") for name, _ in part.named_buffers(recurse=False)}
            # All or nothing: the buffers of one loss belong together.
            if all(value is not None and value.shape == part.get_buffer(n).shape for n, value in mine.items()):
                for name, value in mine.items():
                    part.get_buffer(name).copy_(value)
