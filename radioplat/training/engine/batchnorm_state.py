"""Update BatchNorm statistics once per optimizer step, from all its micro-batches on all ranks.

By default, each rank would update them after each of its own micro-batches, and the result would depend on the world
size. With ``momentum = 1``, a layer writes the statistics of the current micro-batch into its buffers; a forward hook
sums them up and restores the previous values.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from radioplat.common import collectives
from radioplat.common.exact_sums import ExactSum
from radioplat.data.batch import Batch
from radioplat.training.hooks.step_hook import StepHook
from radioplat.training.hooks.step_record import StepRecord


class BatchNormStatistics(StepHook):
    """Update the running statistics of every BatchNorm layer of a module that tracks them.

    In each step, ``mean`` is the mean over its micro-batches of their means and unbiased variances, and
    ``new = (1 - momentum) * old + momentum * mean``; a momentum of None gives the average over all steps.
    The values are kept here in fp32, regardless of the dtype of the buffers. A checkpoint restores them with the
    student's other buffers, see :meth:`sync`.

    Args:
        exact: add so that the result does not depend on how ranks share the micro-batches.

    Attributes:
        counting: True if the current micro-batch contributes; padding does not.
    """

    name = "batchnorm"

    def __init__(self, module: nn.Module, exact: bool = False) -> None:
        layers = {n: m for n, m in module.named_modules() if isinstance(m, _BatchNorm) and m.track_running_stats}
        self._names, self._layers = list(layers), list(layers.values())
        self._momentum = [m.momentum for m in self._layers]
        self._steps = [m.num_batches_tracked.clone() for m in self._layers]
        self._saved = [_buffers(m).float() for m in self._layers]
        self._sums: list[torch.Tensor] = []  # of this step, on the layers' device from the first forward on
        # How often each layer ran: recomputation in backward runs some twice, and a branch may not run at all.
        self._runs = [0] * len(self._layers)
        self._exact = ExactSum(torch.cat([each.flatten() for each in self._zeros()])) if exact and layers else None
        self.counting = True
        for i, layer in enumerate(self._layers):
            layer.momentum = 1.0
            layer.register_forward_hook(self._collect(i))

    def _collect(self, i: int):
        def hook(layer: _BatchNorm, inputs, output) -> None:
            """Add the statistics of this forward to the sums, and restore the values from the start of the step."""
            if layer.training:
                if self.counting:
                    self._sums = self._sums or self._zeros()
                    self._sums[i] += _buffers(layer)
                    self._runs[i] += 1
                self._restore(i)

        return hook

    def _zeros(self) -> list[torch.Tensor]:
        return [torch.zeros_like(_buffers(layer), dtype=torch.float64) for layer in self._layers]

    def _restore(self, i: int) -> None:
        layer = self._layers[i]
        # Write through `data`: autograd saved the buffers for backward and would raise an error because they changed,
        # although backward in training mode does not read them.
        layer.running_mean.data.copy_(self._saved[i][0])
        layer.running_var.data.copy_(self._saved[i][1])
        layer.num_batches_tracked.copy_(self._steps[i])

    def sync(self) -> None:
        """Set the state from the current buffers, after a checkpoint was loaded or the dtype or device changed."""
        for i, layer in enumerate(self._layers):
            present, saved = _buffers(layer), self._saved[i].to(layer.running_mean.device)
            # If a buffer equals the saved value rounded to its dtype, keep the saved value, which is more precise.
            self._saved[i] = torch.where(saved.to(present.dtype) == present, saved, present.float())
            self._steps[i] = layer.num_batches_tracked.clone()

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the statistics by buffer name in fp32; the buffers of a bf16 engine are rounded."""
        return {name: value.cpu().clone() for name, value in self.values().items()}

    def values(self) -> dict[str, torch.Tensor]:
        """Return the statistics as :meth:`state_dict` does, but those in use, on the device."""
        return {
            f"{name}.{kind}": value
            for name, saved in zip(self._names, self._saved, strict=True)
            for kind, value in zip(("running_mean", "running_var"), saved, strict=True)
        }

    def begin_micro_batch(self, step: int, batch: Batch) -> None:
        """Exclude padding from the statistics."""
        self.counting = batch.micro_batch >= 0

    def pause(self, paused: bool) -> None:
        """Let forwards contribute nothing, or again contribute."""
        self.counting = not paused

    def end_micro_batch(self, step: int, batch: Batch) -> None:
        """Add the statistics of this micro-batch exactly."""
        if self._exact is not None and self._sums:
            self._exact.add(torch.cat([each.flatten() for each in self._sums]))
            self._sums = []

    def end_step(self, record: StepRecord) -> None:
        """Update the statistics, or discard this step's sums if it was skipped; see :meth:`step`."""
        self.step(commit=not record.skipped)

    def step(self, commit: bool = True) -> None:
        """Update the buffers from the sums of all ranks; if not ``commit``, discard them. All ranks must call it.

        Nothing is read from the device.
        """
        if not self._layers:
            return
        sums = self._sums or self._zeros()
        runs = torch.tensor(self._runs, dtype=torch.float64).to(sums[0].device, non_blocking=True)
        added = torch.cat([each.flatten() for each in sums])
        if self._exact is not None:
            self._exact.add(added)  # of a micro-batch that a skipped step did not end
            added = self._exact.total(collectives.total)
            self._exact.clear()
            packed = torch.cat([added, collectives.total(runs)])
        else:
            packed = collectives.total(torch.cat([added, runs]))
        *sums, runs = packed.split([each.numel() for each in sums] + [len(self._runs)])
        for i in range(len(self._layers)):
            if commit:
                self._update(i, sums[i].view(2, -1), runs[i])
            self._restore(i)
        self._sums, self._runs = [], [0] * len(self._layers)

    def _update(self, i: int, total: torch.Tensor, runs: torch.Tensor) -> None:
        """Update one layer's values with the sum of the statistics of ``runs`` forwards; without any, leave them."""
        ran = runs > 0
        self._steps[i] = self._steps[i] + ran
        mean = (total / runs.clamp(min=1)).to(self._saved[i])
        if (momentum := self._momentum[i]) is None:
            weight = (1.0 / self._steps[i].clamp(min=1)).to(self._saved[i])
            updated = (1 - weight) * self._saved[i] + weight * mean
        else:
            updated = (1 - momentum) * self._saved[i] + momentum * mean
        self._saved[i] = torch.where(ran, updated, self._saved[i])


def _buffers(layer: _BatchNorm) -> torch.Tensor:
    """Return a copy of running mean and variance, ``[2, C]``."""
    return torch.stack([layer.running_mean, layer.running_var])


def round_statistics(module: nn.Module, dtype: torch.dtype) -> None:
    """Convert BatchNorm statistics to ``dtype``.

    DeepSpeed leaves buffers in fp32, but torch's batch_norm does not accept fp32 buffers with 16-bit weights.
    """
    for layer in module.modules():
        if isinstance(layer, _BatchNorm) and layer.track_running_stats:
            layer.running_mean, layer.running_var = layer.running_mean.to(dtype), layer.running_var.to(dtype)
