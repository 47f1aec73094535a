"""DeepSpeed at ZeRO 0 and 1 with sums of gradients that do not depend on the number of ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from radioplat.spec.schema.root import Spec
from radioplat.training.engine import deepspeed_compat
from radioplat.training.engine.deepspeed_engine import DeepSpeedEngine
from radioplat.training.engine.engine import LARGEST
from radioplat.training.engine.exact_gradients import ExactGradients, clip_factor, cut
from radioplat.training.engine.whole_tensors import State


class ExactDeepSpeedEngine(DeepSpeedEngine):
    """DeepSpeed keeps and updates its part of the weights; all gradients of a step are added up here, whole.

    Forward and backward do not pass through DeepSpeed. Its optimizer gets this rank's part of the means, already
    clipped by the norm of whole tensors. Optimizers must treat each value by itself, as all but LAMB do.
    """

    def __init__(self, module: nn.Module, spec: Spec, micro_batches: int) -> None:
        super().__init__(module, spec, micro_batches)
        self._module, self._clip = module, spec.train.clip_grad_norm
        self._means = deepspeed_compat.take_over_gradients(self.inner)
        self._gradients: list[tuple[nn.Parameter, torch.Tensor]] = []
        parts, tensors = [], []
        for group, means in self._means:
            low = group[0].dtype
            flat = means if low is torch.float32 else torch.zeros_like(means, dtype=low)
            places, start = [], 0
            for parameter in group:
                places.append((start, parameter.numel()))
                self._gradients.append((parameter, flat.narrow(0, *places[-1]).view(parameter.shape)))
                start += parameter.numel()
            parts += cut(flat, means, places)
            tensors += [means.narrow(0, *place) for place in places]
        self._tensors = tensors
        self._exact = ExactGradients(parts, spec.global_batch_size // spec.dataset.batch_size, micro_batches)
        self._attach()
        self._last = self._applied = self._repeats = False

    def __call__(self, *inputs: Any) -> Any:  # noqa: ANN401
        """Run the module."""
        return self._module(*inputs)

    def backward(self, loss: torch.Tensor, last: bool = True) -> None:
        """Add gradients; ranks exchange the sums in the following :meth:`step`, after the last one."""
        self._last = last
        loss.backward()
        self._exact.add()

    @torch.no_grad()
    def step(self) -> None:
        """Clip the gradients and update the weights after the last micro-batch, if all gradients are finite."""
        self._applied = self._repeats = False
        if not self._last:
            return
        if not self._exact.finish():
            self._repeats = True
            return
        factor = clip_factor(torch._foreach_norm(self._tensors), self._clip)
        if factor is not None:
            if factor != 1:
                for _, means in self._means:
                    means.mul_(factor)
            self._release()
            deepspeed_compat.update(self.inner, [means for _, means in self._means])
            self._applied = not getattr(self.inner.optimizer, "overflow", False)
        self.discard_gradients()
        self._last = False

    def must_repeat(self) -> bool:
        """Return True if the gradients' quanta did not fit the last step."""
        return self._repeats

    def was_step_applied(self) -> bool:
        """Return False if gradients were not finite, in any number format."""
        return self._applied

    def discard_gradients(self) -> None:
        """Set the gradients of this step to zero."""
        self._exact.clear()
        self._attach()

    def scales(self) -> State:
        """Return the magnitudes of gradients."""
        return {LARGEST: self._exact.largest.clone()}

    def load_full_state(
        self, names: dict[str, nn.Parameter], moments: tuple[str, ...], state: State, steps: int
    ) -> None:
        """Load whole weights and moments."""
        super().load_full_state(names, moments, state, steps)
        self._exact.load(state.get(LARGEST))

    def close(self) -> None:
        """Remove DeepSpeed's hooks from the module, and free its buffers."""
        super().close()
        for parameter, _ in self._gradients:
            parameter.grad = None
        self._means.clear()
        self._gradients.clear()
        self._tensors.clear()
        del self._exact

    def _attach(self) -> None:
        """Let autograd write into the flat gradients; DeepSpeed takes them away from the parameters in its step."""
        for parameter, gradient in self._gradients:
            parameter.grad = gradient
