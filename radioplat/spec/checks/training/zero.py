"""Checks of the engine, of offloading, and of ZeRO, which shards optimizer, gradients and weights between workers."""

from __future__ import annotations

from collections.abc import Iterator

from radioplat.errors import Problem
from radioplat.spec.resolved.reduction import is_exact
from radioplat.spec.schema.root import Spec
from radioplat.spec.schema.train import EngineName, Precision, TrainConfig


def zero_problems(spec: Spec) -> Iterator[Problem]:
    """Yield problems of ``train.engine``, ``train.zero_stage`` and ``train.offload``.

    All optimizers support all stages and offloading. Settings that need whole weights in each step are checked with
    their own fields (``train.regularizer``, ``model.backbone.spectral_reparam``).
    """
    train = spec.train
    if is_exact(train):
        yield from _exact(spec)
    if train.engine is EngineName.ddp:
        yield from _ddp(train)
    elif train.offload and not train.zero_stage:
        hint = "Take train.zero_stage 1, 2 or 3; stage 1 with one worker shards nothing."
        yield Problem("offloading needs a ZeRO stage above 0", "train.offload", hint)


def _exact(spec: Spec) -> Iterator[Problem]:
    """Yield settings whose sums depend on the number of workers, whatever ``train.reduction`` is."""
    train, hint = spec.train, "Take train.engine ddp"
    if train.engine is not EngineName.ddp:
        message = "the sums of DeepSpeed depend on the number of workers"
        yield Problem(message, "train.reduction", f"{hint}, or reduction fast.")
    if train.cudnn.benchmark:
        message = "cuDNN takes the algorithm that a measurement finds fastest, which is not always the same"
        yield Problem(message, "train.cudnn.benchmark", "Set it to false, or train.reduction to fast.")


def _ddp(train: TrainConfig) -> Iterator[Problem]:
    """Yield settings that ask ``train.engine: ddp`` for what it does not have."""
    hint = "Take train.engine deepspeed"
    if train.zero_stage:
        yield Problem("ddp shards nothing between workers", "train.zero_stage", f"{hint}, or zero_stage 0.")
    if train.offload:
        yield Problem("ddp keeps the optimizer on the device", "train.offload", f"{hint} with a zero_stage above 0.")
    if train.precision is Precision.fp16:
        yield Problem("ddp has no loss scaling, which fp16 needs", "train.precision", f"{hint}, or bf16 or fp32.")
