"""BatchNorm statistics that move once per optimizer step, from all its micro-batches on all ranks.

Left alone, each rank would update them after each of its own micro-batches, and the result would depend on the world
size. With ``momentum = 1`` a layer writes the statistics of the micro-batch it just saw into its buffers; a hook
collects them and puts the previous values back.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from radioplat.data.batch import Batch
from radioplat.training.hooks.step_hook import StepHook
from radioplat.training.hooks.step_record import StepRecord


class BatchNormStatistics(StepHook):
    """Watches every BatchNorm of a module that tracks running statistics.

    Per step, with the mean over its micro-batches of their means and unbiased variances:
    ``new = (1 - momentum) * old + momentum * mean``; a momentum of None gives the average over all steps.
    The values are kept here in fp32, whatever the dtype of the buffers. A checkpoint restores them with the student's
    other buffers, see :meth:`sync`.

    Attributes:
        counting: whether the present micro-batch counts.
    """

    name = "batchnorm"

    def __init__(self, module: nn.Module) -> None:
        layers = {n: m for n, m in module.named_modules() if isinstance(m, _BatchNorm) and m.track_running_stats}
        self._names, self._layers = list(layers), list(layers.values())
        self._momentum = [m.momentum for m in self._layers]
        self._sums = [torch.zeros(2, m.num_features, dtype=torch.float64) for m in self._layers]
        # How often each layer ran: recomputation in backward runs some twice, and a branch may not run at all.
        self._runs = torch.zeros(len(self._layers), dtype=torch.float64)
        self.counting = True
        self._saved = [_buffers(m).float() for m in self._layers]
        self._steps = [int(m.num_batches_tracked) for m in self._layers]
        for i, layer in enumerate(self._layers):
            layer.momentum = 1.0
            layer.register_forward_hook(self._collect(i))

    def _collect(self, i: int):
        def hook(layer: _BatchNorm, inputs, output) -> None:
            """Add what this forward made of the statistics, and put back those that the step began with."""
            if layer.training:
                if self.counting:
                    self._sums[i] += _buffers(layer).double().cpu()
                    self._runs[i] += 1
                self._restore(i)

        return hook

    def _restore(self, i: int) -> None:
        layer = self._layers[i]
        # Through `data`: autograd holds the buffers for backward, which in training does not read them, and would
        # refuse them as changed.
        layer.running_mean.data.copy_(self._saved[i][0])
        layer.running_var.data.copy_(self._saved[i][1])
        layer.num_batches_tracked.fill_(self._steps[i])

    def sync(self) -> None:
        """Take the present buffers as the state, after a checkpoint was loaded or a dtype or device changed."""
        for i, layer in enumerate(self._layers):
            present, saved = _buffers(layer), self._saved[i].to(layer.running_mean.device)
            # Where a buffer is only our value rounded to its dtype, ours is the better one.
            self._saved[i] = torch.where(saved.to(present.dtype) == present, saved, present.float())
            self._steps[i] = int(layer.num_batches_tracked)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The statistics in fp32 by buffer name; a bf16 engine's own buffers are rounded."""
        return {
            f"{name}.{kind}": value.cpu().clone()
            for name, saved in zip(self._names, self._saved, strict=True)
            for kind, value in zip(("running_mean", "running_var"), saved, strict=True)
        }

    def begin_micro_batch(self, step: int, batch: Batch) -> None:
        """Padding does not count."""
        self.counting = batch.micro_batch >= 0

    def end_step(self, record: StepRecord) -> None:
        """See :meth:`step`."""
        self.step(commit=not record.skipped)

    def step(self, commit: bool = True) -> None:
        """Move the buffers by the sums of all ranks, or drop these where the step was skipped."""
        if not self._layers:
            return
        packed = torch.cat([s.flatten() for s in self._sums] + [self._runs])
        if dist.is_initialized() and dist.get_world_size() > 1:
            packed = packed.to(self._layers[0].running_mean.device)
            dist.all_reduce(packed)
            packed = packed.cpu()
        runs, offset = packed[-len(self._layers) :].tolist(), 0
        for i, layer in enumerate(self._layers):
            size = 2 * layer.num_features
            if commit and runs[i]:
                mean = (packed[offset : offset + size].view(2, -1) / runs[i]).to(self._saved[i])
                self._steps[i] += 1
                momentum = 1 / self._steps[i] if self._momentum[i] is None else self._momentum[i]
                self._saved[i] = (1 - momentum) * self._saved[i] + momentum * mean
            self._restore(i)
            self._sums[i].zero_()
            offset += size
        self._runs.zero_()


def _buffers(layer: _BatchNorm) -> torch.Tensor:
    """Mean and variance, ``[2, C]``, a copy."""
    return torch.stack([layer.running_mean, layer.running_var])
