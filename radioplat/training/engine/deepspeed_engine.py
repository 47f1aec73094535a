"""The DeepSpeed engine of one training worker: ZeRO at any stage, mixed precision and offload."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from radioplat.optim.lamb import Lamb
from radioplat.optim.optimizer import build_optimizer
from radioplat.spec.resolved.precision import precision_of
from radioplat.spec.resolved.reduction import is_exact
from radioplat.spec.resolved.zero import BUCKET, zero_stage
from radioplat.spec.schema.root import Spec
from radioplat.spec.schema.train import Precision
from radioplat.training.engine import deepspeed_compat, zero_gather
from radioplat.training.engine.batchnorm_state import round_statistics
from radioplat.training.engine.engine import Engine
from radioplat.training.engine.whole_layout import Piece
from radioplat.training.engine.whole_tensors import State, Values


class DeepSpeedEngine(Engine):
    """DeepSpeed around ``module`` with ZeRO, mixed precision, offload and gradient clipping.

    Args:
        micro_batches: number of micro-batches of one optimizer step on this rank, padding included.

    Attributes:
        inner: DeepSpeed's own engine.

    Raises:
        SpecError: a parameter group is invalid (see :func:`build_optimizer`).
    """

    def __init__(self, module: nn.Module, spec: Spec, micro_batches: int) -> None:
        import deepspeed

        # Where tensors are cut depends on the number of ranks: exact updates are of separate operators, which are alike
        # for each value.
        fused = not spec.train.offload and not is_exact(spec.train)
        optimizer = build_optimizer(module, spec.train.optim, fused)
        config = _config(spec, micro_batches, sum(p.numel() for p in module.parameters() if p.requires_grad))
        engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer, config=config)
        if precision_of(spec.train) is not Precision.fp32:
            round_statistics(module, engine.get_data_types()[0])
        if (scaler := deepspeed_compat.moving_scaler(engine)) is not None:
            scaler.raise_error_at_min_scale = False  # it would raise a plain Exception; NonFiniteGuard ends such runs
        if isinstance(optimizer, Lamb):
            optimizer.layouts = deepspeed_compat.layouts(engine)
        if engine.zero_optimization_stage() == 0 and engine.world_size == 1:
            # With one rank there is nothing to reduce, and copying all gradients would take time.
            engine.enable_backward_allreduce = False
        self.inner = engine

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Groups of the optimizer."""
        return self.inner.optimizer.param_groups

    def __call__(self, *inputs: Any) -> Any:  # noqa: ANN401
        """Run the module."""
        return self.inner(*inputs)

    def backward(self, loss: torch.Tensor, last: bool = True) -> None:
        """Add gradients; stages 2 and 3 reduce them over ranks at each micro-batch."""
        self.inner.set_gradient_accumulation_boundary(last)
        self.inner.backward(loss)

    def step(self) -> None:
        """Update the weights after the last micro-batch; DeepSpeed counts the others."""
        if self.inner.is_gradient_accumulation_boundary():
            self._release()
        self.inner.step()

    def was_step_applied(self) -> bool:
        """Return False if gradients in 16 bits were not finite."""
        return self.inner.was_step_applied()

    def discard_gradients(self) -> None:
        """Discard the gradients of this step."""
        deepspeed_compat.discard_gradients(self.inner)

    def values(self, moments: tuple[str, ...]) -> dict[str, Values]:
        """Return what this rank's optimizer updates."""
        return deepspeed_compat.values(self.inner, moments)

    def scales(self) -> State:
        """Return the state of a dynamic loss scaler."""
        return deepspeed_compat.loss_scale(self.inner)

    def pieces(self, names: dict[str, nn.Parameter]) -> dict[str, Piece | None]:
        """Return the pieces that ZeRO keeps on this rank; whole parameters at stage 0."""
        return deepspeed_compat.pieces(self.inner, names)

    def shapes(self, names: dict[str, nn.Parameter]) -> dict[str, torch.Size]:
        """Return the shapes of whole parameters, also at stage 3."""
        return {name: zero_gather.shape_of(parameter) for name, parameter in names.items()}

    def load_full_state(
        self, names: dict[str, nn.Parameter], moments: tuple[str, ...], state: State, steps: int
    ) -> None:
        """Load whole weights and moments."""
        deepspeed_compat.load_full_state(self.inner, names, moments, state, steps)

    def masters(self) -> list[torch.Tensor]:
        """Return whole fp32 weights at stage 0, else flat tensors of this rank's pieces."""
        return deepspeed_compat.masters(self.inner)

    def copy_values(self, names: dict[str, nn.Parameter], values: list[torch.Tensor], into: State) -> None:
        """Gather tensors like :meth:`masters` into those of ``into``."""
        deepspeed_compat.copy_values(self.inner, names, values, into)

    def scatter_values(self, names: dict[str, nn.Parameter], values: list[torch.Tensor], state: State) -> None:
        """Copy whole tensors into tensors like :meth:`masters`."""
        deepspeed_compat.scatter_values(self.inner, names, values, state)

    def close(self) -> None:
        """Remove DeepSpeed's hooks from the module, and free its buffers."""
        self.inner.destroy()


def _config(spec: Spec, micro_batches: int, parameters: int) -> dict[str, Any]:
    """Return DeepSpeed's configuration; ``parameters`` is the number of trainable values.

    16-bit runs keep fp32 master weights in the optimizer and sum gradients in fp32, over micro-batches and over ranks.
    DeepSpeed supports that from stage 1 on, so stage 0 runs as stage 1. By default DeepSpeed would communicate in
    16 bits: at stage 1 the fp32 sum of a whole step would be rounded on the way, even with one rank.
    """
    train = spec.train
    low = precision_of(train) is not Precision.fp32
    zero: dict[str, Any] = {"stage": zero_stage(train)}
    if zero["stage"]:
        # DeepSpeed allocates the whole bucket, two with overlap_comm, regardless of the size of the student.
        zero["reduce_bucket_size"] = min(BUCKET, parameters)
        zero["contiguous_gradients"] = True
    if zero["stage"] in (1, 2):
        zero["overlap_comm"] = _overlaps()
        # Each piece of a bucket goes to the rank that keeps it, half the bytes of an exchange with all ranks.
        zero["use_multi_rank_bucket_allreduce"] = False
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": spec.dataset.batch_size,
        "gradient_accumulation_steps": micro_batches,
        "gradient_clipping": 0.0 if is_exact(train) else train.clip_grad_norm,  # by `ExactDeepSpeedEngine` itself
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 10**9,
        "timers": {"throughput": {"enabled": False}},  # it would wait for the GPU twice for each micro-batch
    }
    if low:
        config[precision_of(train).value] = {"enabled": True}
        config["data_types"] = {"grad_accum_dtype": "fp32"}
        config["communication_data_type"] = "fp32"
    if train.offload:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": torch.cuda.is_available()}
        # DeepSpeed's CPU Adam would be compiled at the start on each new machine, and no other optimizer is available.
        config["zero_force_ds_cpu_optimizer"] = False
    return config


def _overlaps() -> bool:
    """Return whether gradients can be reduced during the backward pass: on streams of GPUs, with more than one rank."""
    return torch.cuda.is_available() and dist.get_world_size() > 1
