"""The DeepSpeed engine of one training worker."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from radioplat.distill import ds_compat
from radioplat.distill.cpu_bf16 import CpuBf16
from radioplat.distill.lamb import Lamb
from radioplat.distill.optimizer import build_optimizer
from radioplat.spec.root import Spec
from radioplat.spec.train import Precision
from radioplat.teachers.teacher import has_native_bf16


def build_engine(module: nn.Module, spec: Spec, micro_batches: int) -> Any:
    """Wrap ``module`` for ZeRO, mixed precision and clipping.

    Args:
        micro_batches: of one optimizer step on this rank, padding included.

    bf16 keeps its fp32 master weights in the optimizer, which DeepSpeed offers from stage 1 on: stage 0 runs as 1.
    """
    import deepspeed

    train = spec.train
    bf16 = train.precision is Precision.bf16
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": spec.dataset.batch_size,
        "gradient_accumulation_steps": micro_batches,
        "gradient_clipping": train.clip_grad_norm,
        "zero_optimization": {"stage": max(1, train.zero_stage) if bf16 else train.zero_stage},
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 10**9,
    }
    if bf16:
        config["bf16"] = {"enabled": True}
        config["data_types"] = {"grad_accum_dtype": "fp32"}
    optimizer = build_optimizer(module, train.optim)
    engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer, config=config)
    if bf16:
        round_statistics(module)
    if isinstance(optimizer, Lamb):
        optimizer.layouts = ds_compat.layouts(engine)
    if engine.zero_optimization_stage() == 0 and engine.world_size == 1:
        # There is nobody to exchange gradients with, and copying all of them takes its time.
        engine.enable_backward_allreduce = False
    return engine


def round_statistics(module: nn.Module) -> None:
    """DeepSpeed leaves buffers in fp32, and torch's batch_norm takes none beside bf16 weights."""
    for layer in module.modules():
        if isinstance(layer, _BatchNorm) and layer.track_running_stats:
            layer.running_mean, layer.running_var = layer.running_mean.bfloat16(), layer.running_var.bfloat16()


def arithmetic(spec: Spec, device: torch.device) -> AbstractContextManager:
    """The context in which forward runs: bf16 on a CPU without bf16 units goes through :class:`CpuBf16`."""
    if spec.train.precision is Precision.bf16 and device.type == "cpu" and not has_native_bf16(device):
        return CpuBf16()
    return nullcontext()
