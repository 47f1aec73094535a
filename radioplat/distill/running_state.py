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


class RunningState:
    """Watches every BatchNorm of a module that tracks running statistics."""

    def __init__(self, module: nn.Module) -> None:
        self._layers = [m for m in module.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
        self._momentum = [0.1 if m.momentum is None else m.momentum for m in self._layers]
        self._sums = [torch.zeros(2, m.num_features, dtype=torch.float64) for m in self._layers]
        self._seen = 0.0
        self._counts = True
        self._saved = [torch.stack([m.running_mean, m.running_var]).clone() for m in self._layers]
        for i, layer in enumerate(self._layers):
            layer.momentum = 1.0
            layer.register_forward_hook(self._collect(i))

    def _collect(self, i: int):
        def hook(layer: _BatchNorm, inputs, output) -> None:
            if layer.training:
                if self._counts:
                    self._sums[i] += torch.stack([layer.running_mean, layer.running_var]).double().cpu()
                self._restore(i)

        return hook

    def _restore(self, i: int) -> None:
        layer = self._layers[i]
        layer.running_mean.copy_(self._saved[i][0])
        layer.running_var.copy_(self._saved[i][1])

    def sync(self) -> None:
        """Take the present buffers as the state, after a checkpoint was loaded or a dtype changed."""
        self._saved = [torch.stack([m.running_mean, m.running_var]).float().clone() for m in self._layers]

    def micro_batch(self, counts: bool) -> None:
        """Announce a micro-batch; padding does not count."""
        self._counts = counts
        self._seen += float(counts)

    def step(self, commit: bool = True) -> None:
        """End of an optimizer step: all ranks' sums into the buffers, or dropped where the step was skipped."""
        if not self._layers:
            return
        packed = torch.cat([s.flatten() for s in self._sums] + [torch.tensor([self._seen], dtype=torch.float64)])
        if dist.is_initialized() and dist.get_world_size() > 1:
            packed = packed.to(self._layers[0].running_mean.device)
            dist.all_reduce(packed)
            packed = packed.cpu()
        count, offset = packed[-1].clamp(min=1), 0
        for i, (layer, momentum) in enumerate(zip(self._layers, self._momentum)):
            size = 2 * layer.num_features
            mean = (packed[offset : offset + size].view(2, -1) / count).to(self._saved[i])
            if commit:
                self._saved[i] = (1 - momentum) * self._saved[i] + momentum * mean
            self._restore(i)
            self._sums[i].zero_()
            offset += size
        self._seen = 0.0
