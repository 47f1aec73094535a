"""The running statistics of losses: moved once per optimizer step, from all ranks, and stored in checkpoints."""

from __future__ import annotations

import torch
from torch import nn

from radioplat.common import collectives
from radioplat.data.batch import Batch
from radioplat.losses.base.running_statistics import Running
from radioplat.training.hooks.step_hook import StepHook
from radioplat.training.hooks.step_record import StepRecord


class LossStatistics(StepHook):
    """Watches every :class:`Running` of ``module`` that has statistics.

    Sums over samples are added over the micro-batches and ranks of a step, in float64: however a step is cut, the
    statistics move alike up to the order of the additions.
    """

    name = "losses"

    def __init__(self, module: nn.Module) -> None:
        self._parts = {n: m for n, m in module.named_modules() if isinstance(m, Running) and m.sums()}

    def begin_micro_batch(self, step: int, batch: Batch) -> None:
        """Padding does not count."""
        for part in self._parts.values():
            part.counting = batch.micro_batch >= 0

    def end_step(self, record: StepRecord) -> None:
        """See :meth:`step`."""
        self.step(commit=not record.skipped)

    def step(self, commit: bool = True) -> None:
        """Move the statistics by the sums of all ranks, or drop these where the step was skipped; all ranks call it."""
        if not self._parts:
            return
        sums = [part.sums() for part in self._parts.values()]
        packed = collectives.total(torch.cat([value.flatten() for mine in sums for value in mine.values()]))
        pieces = iter(packed.split([value.numel() for mine in sums for value in mine.values()]))
        for part, mine in zip(self._parts.values(), sums, strict=True):
            total = {name: next(pieces).view(value.shape) for name, value in mine.items()}
            if commit:
                part.update(total)
            part.clear()

    def state_dict(self) -> dict[str, torch.Tensor]:
        """All statistics, float64 on the CPU."""
        return {
            f"{place}.{name}": value.detach().cpu().clone()
            for place, part in self._parts.items()
            for name, value in part.named_buffers(recurse=False)
        }

    def load_state_dict(self, tensors: dict[str, torch.Tensor]) -> None:
        """Restore them. A statistic that the checkpoint lacks, or has in another shape, begins anew."""
        for place, part in self._parts.items():
            mine = {name: tensors.get(f"{place}.{name}") for name, _ in part.named_buffers(recurse=False)}
            # All or nothing: half of a statistic is none.
            if all(value is not None and value.shape == part.get_buffer(n).shape for n, value in mine.items()):
                for name, value in mine.items():
                    part.get_buffer(name).copy_(value)
