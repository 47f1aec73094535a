"""Build the DeepSpeed engine of one training worker."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from radioplat.optim.lamb import Lamb
from radioplat.optim.optimizer import build_optimizer
from radioplat.spec.resolved.precision import precision_of
from radioplat.spec.resolved.zero import BUCKET, zero_stage
from radioplat.spec.schema.root import Spec
from radioplat.spec.schema.train import Precision
from radioplat.teachers.base.teacher import has_native_bf16
from radioplat.training.engine import deepspeed_compat
from radioplat.training.engine.cpu_bf16 import CpuBf16


def build_engine(module: nn.Module, spec: Spec, micro_batches: int) -> Any:
    """Return a DeepSpeed engine around ``module`` with ZeRO, mixed precision, offload and gradient clipping.

    Args:
        micro_batches: number of micro-batches of one optimizer step on this rank, padding included.

    Raises:
        SpecError: a parameter group is invalid (see :func:`build_optimizer`).
    """
    import deepspeed

    optimizer = build_optimizer(module, spec.train.optim)
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
    return engine


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
        # DeepSpeed allocates the whole bucket, by default 5e8 values, regardless of the size of the student.
        zero["reduce_bucket_size"] = min(BUCKET, parameters)
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": spec.dataset.batch_size,
        "gradient_accumulation_steps": micro_batches,
        "gradient_clipping": train.clip_grad_norm,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 10**9,
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


def round_statistics(module: nn.Module, dtype: torch.dtype) -> None:
    """Convert BatchNorm statistics to ``dtype``.

    DeepSpeed leaves buffers in fp32, but torch's batch_norm does not accept fp32 buffers with 16-bit weights.
    """
    for layer in module.modules():
        if isinstance(layer, _BatchNorm) and layer.track_running_stats:
            layer.running_mean, layer.running_var = layer.running_mean.to(dtype), layer.running_var.to(dtype)


def arithmetic(spec: Spec, device: torch.device) -> AbstractContextManager:
    """Return the context for forward: :class:`CpuBf16` for bf16 on a CPU without bf16 units, else a null context."""
    if precision_of(spec.train) is Precision.bf16 and device.type == "cpu" and not has_native_bf16(device):
        return CpuBf16()
    return nullcontext()
