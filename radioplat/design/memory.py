"""Bytes of a trained parameter on each worker, for `plan`, its warning of stage 3 and the check of too large heads.

Counted as by Rajbhandari et al. (ZeRO, 2020, section 3): weights, gradients and optimizer state, each divided by the
number of workers from a ZeRO stage on. It differs in two points, because DeepSpeed sums gradients in fp32 (see
:mod:`radioplat.training.engine.deepspeed_engine`): in 16 bits a summed gradient has 4 bytes, not 2, at stage 1 in
addition to those of a micro-batch; and in fp32 ZeRO also has a copy of the weights for the optimizer. Not included:
activations, the one or two buckets in which stages 1 and 2 send gradients during a backward pass (of at most
:data:`BUCKET` elements), and at stage 3 parameters of fewer than 100,000 elements, which DeepSpeed does not shard.

The engine ``ddp`` (:mod:`radioplat.training.engine.ddp_engine`) shards nothing. In 16 bits it has the same tensors as
stage 1 with one worker, in fp32 those of stage 0. ``train.reduction: exact`` adds up in float64 sums of their own, and
while it adds needs as much again for at most :data:`BUCKET` parameters, which is not included.
"""

from __future__ import annotations

from dataclasses import dataclass

from radioplat.optim.optimizer import MOMENTS
from radioplat.spec.resolved.precision import precision_of
from radioplat.spec.resolved.reduction import is_exact
from radioplat.spec.resolved.zero import BUCKET, zero_stage
from radioplat.spec.schema.train import EngineName, Precision, TrainConfig


@dataclass(frozen=True)
class ParameterBytes:
    """Bytes of a trained parameter on the device of one worker, at the end of a backward pass.

    Attributes:
        weights: for forward and backward.
        gradients: of the micro-batch, and their sum.
        master: fp32 weights of the optimizer, if they are separate.
        moments: of the optimizer.
        average: EMA of ``train.enable_ema``.
        bucket: buffer of stage 3 for sending gradients, of at most :data:`BUCKET` parameters.
    """

    weights: float
    gradients: float
    master: float
    moments: float
    average: float
    bucket: float

    @property
    def each(self) -> float:
        """Bytes per parameter without the bucket, whose size is limited."""
        return self.weights + self.gradients + self.master + self.moments + self.average

    def of(self, parameters: int) -> int:
        """Return the bytes of this number of parameters."""
        return round(self.each * parameters + self.bucket * min(parameters, BUCKET))


def parameter_bytes(train: TrainConfig, world: int) -> ParameterBytes:
    """Return the bytes that the run's engine needs for a parameter on each of ``world`` workers."""
    world = 1 if train.engine is EngineName.ddp else world
    low, stage = precision_of(train) is not Precision.fp32, zero_stage(train)
    number = 2 if low else 4
    kept = 0 if train.offload else 4 / (world if stage >= 1 else 1)  # for each fp32 number of the optimizer state
    if train.offload:
        gradients = number / (world if stage >= 2 else 1)  # the sum is on the host
    elif stage >= 2:
        gradients = 4 / world
    else:
        gradients = 4 + (number if stage else 0)  # those of a micro-batch and their sum
    if is_exact(train):
        gradients += 8  # float64 sums
    return ParameterBytes(
        weights=number / (world if stage == 3 else 1),
        gradients=gradients,
        master=kept if stage else 0,
        moments=kept * len(MOMENTS.get(train.optim.optim, ())),
        average=kept * train.enable_ema,
        bucket=4 if stage == 3 else 0,
    )
