"""The running statistics of losses: one move an optimizer step, and a place in checkpoints.

They stand beside :class:`radioplat.training.engine.batchnorm_state.RunningState`, which does the same for BatchNorm.
"""

from __future__ import annotations

import torch
from torch import nn

from radioplat.common import collectives
from radioplat.losses.base.running import Running


class LossState:
    """Watches every :class:`Running` of ``module`` that has statistics.

    Sums over samples are added over the micro-batches and ranks of a step, in float64: however a step is cut, the
    statistics move alike up to the order of the additions.
    """

    def __init__(self, module: nn.Module) -> None:
        self._parts = {n: m for n, m in module.named_modules() if isinstance(m, Running) and m.sums()}

    def micro_batch(self, counts: bool) -> None:
        """Announce a micro-batch; padding does not count."""
        for part in self._parts.values():
            part.counting = counts

    def step(self, commit: bool = True) -> None:
        """End of an optimizer step: all ranks' sums into the statistics, or dropped where the step was skipped.

        Every rank calls it.
        """
        if not self._parts:
            return
        sums = [part.sums() for part in self._parts.values()]
        packed = collectives.total(torch.cat([value.flatten() for mine in sums for value in mine.values()]))
        pieces = iter(packed.split([value.numel() for mine in sums for value in mine.values()]))
        for part, mine in zip(self._parts.values(), sums, strict=True):
            total = {name: next(pieces).view(value.shape) for name, value in mine.items()}
            if commit:
                part.move(total)
            part.clear()

    def tensors(self) -> dict[str, torch.Tensor]:
        """All statistics, float64 on the CPU, for a checkpoint."""
        return {
            f"{place}.{name}": value.detach().cpu().clone()
            for place, part in self._parts.items()
            for name, value in part.named_buffers(recurse=False)
        }

    def load(self, tensors: dict[str, torch.Tensor]) -> None:
        """Take up what :meth:`tensors` gave. What the losses of a checkpoint did not count begins anew."""
        for place, part in self._parts.items():
            mine = {name: tensors.get(f"{place}.{name}") for name, _ in part.named_buffers(recurse=False)}
            # All or nothing: half of a statistic is none.
            if all(value is not None and value.shape == part.get_buffer(n).shape for n, value in mine.items()):
                for name, value in mine.items():
                    part.get_buffer(name).copy_(value)
