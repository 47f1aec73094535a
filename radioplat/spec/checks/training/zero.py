"""Checks of the engine, of offloading, and of ZeRO, which shards optimizer, gradients and weights between workers."""

from __future__ import annotations

from collections.abc import Iterator

from radioplat.errors import Problem
from radioplat.spec.resolved.reduction import MOST_MICRO_BATCHES, is_exact
from radioplat.spec.resolved.zero import zero_stage
from radioplat.spec.schema.root import Spec
from radioplat.spec.schema.train import EngineName, OptimizerName, Precision, TrainConfig


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
    train = spec.train
    if train.engine is EngineName.deepspeed:
        yield from _exact_deepspeed(train)
    if (count := spec.global_batch_size // max(1, spec.dataset.batch_size)) > MOST_MICRO_BATCHES:
        message = f"a step has {count:,} micro-batches; gradients of at most {MOST_MICRO_BATCHES:,} are added exactly"
        yield Problem(message, "train.global_batch_size", "Raise dataset.batch_size, or take train.reduction fast.")
    if train.cudnn.benchmark:
        message = "cuDNN takes the algorithm that a measurement finds fastest, which is not always the same"
        yield Problem(message, "train.cudnn.benchmark", "Set it to false, or train.reduction to fast.")


def _exact_deepspeed(train: TrainConfig) -> Iterator[Problem]:
    """Yield what DeepSpeed cannot do with exact sums."""
    if train.zero_stage > 1:
        message = f"ZeRO {train.zero_stage} adds gradients up in an order that depends on the number of workers"
        yield Problem(message, "train.zero_stage", "Take zero_stage 0 or 1, train.engine ddp, or reduction fast.")
    if train.offload:
        message = "offloaded gradients are added up in an order that depends on the number of workers"
        yield Problem(message, "train.offload", "Set it to false, or train.reduction to fast.")
    if train.precision is Precision.fp16:
        message = "the loss scale of fp16 depends on how workers share the micro-batches"
        yield Problem(message, "train.precision", "Take bf16 or fp32, or train.reduction fast.")
    if zero_stage(train) and train.optim.optim in (OptimizerName.lamb, OptimizerName.fusedlamb):
        message = "with ZeRO 1, which bf16 includes, LAMB adds norms of the workers' parts of a weight"
        yield Problem(
            message, "train.optim.optim", "Take train.engine ddp, another optimizer, or train.reduction fast."
        )


def _ddp(train: TrainConfig) -> Iterator[Problem]:
    """Yield settings that ask ``train.engine: ddp`` for what it does not have."""
    hint = "Take train.engine deepspeed"
    if train.zero_stage:
        yield Problem("ddp shards nothing between workers", "train.zero_stage", f"{hint}, or zero_stage 0.")
    if train.offload:
        yield Problem("ddp keeps the optimizer on the device", "train.offload", f"{hint} with a zero_stage above 0.")
    if train.precision is Precision.fp16:
        yield Problem("ddp has no loss scaling, which fp16 needs", "train.precision", f"{hint}, or bf16 or fp32.")
