"""Bytes of a trained parameter on each worker: for `plan`, and for heads that are refused by their size.

As Rajbhandari et al. (ZeRO, 2020, section 3) count: weights, gradients, and what the optimizer keeps, each divided by
the number of workers from a ZeRO stage on. Two things differ from there, because DeepSpeed sums gradients in
fp32 (see :mod:`radioplat.training.engine.deepspeed_engine`): in 16 bits a summed gradient has 4 bytes, not 2, at stage
1 beside those of a micro-batch, and in fp32 ZeRO too keeps a copy of the weights that the optimizer moves. Activations
come on top, in a backward the buckets in which stages 1 and 2 send gradients, and at stage 3 what DeepSpeed leaves
whole: parameters of fewer than 100,000 numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

from radioplat.optim.optimizer import MOMENTS
from radioplat.spec.resolved.zero import BUCKET, zero_stage
from radioplat.spec.schema.train import Precision, TrainConfig


@dataclass(frozen=True)
class ParameterBytes:
    """Bytes a trained parameter takes on the device of one worker, at the end of a backward.

    Attributes:
        weights: what forward and backward compute with.
        gradients: of the micro-batch, and their sum.
        master: the fp32 weights that the optimizer moves, where they are not those.
        moments: of the optimizer.
        average: of ``train.enable_ema``.
        bucket: that stage 3 keeps to send gradients in, of at most :data:`BUCKET` parameters.
    """

    weights: float
    gradients: float
    master: float
    moments: float
    average: float
    bucket: float

    @property
    def each(self) -> float:
        """Without the bucket, which does not grow beyond its size."""
        return self.weights + self.gradients + self.master + self.moments + self.average

    def of(self, parameters: int) -> int:
        """Bytes of so many parameters."""
        return round(self.each * parameters + self.bucket * min(parameters, BUCKET))


def parameter_bytes(train: TrainConfig, world: int) -> ParameterBytes:
    """Return what DeepSpeed keeps for a parameter on each of ``world`` workers."""
    low, stage = train.precision is not Precision.fp32, zero_stage(train)
    number = 2 if low else 4
    kept = 0 if train.offload else 4 / (world if stage >= 1 else 1)  # of one fp32 number that the optimizer keeps
    if train.offload:
        gradients = number / (world if stage >= 2 else 1)  # the sum is on the host
    elif stage >= 2:
        gradients = 4 / world
    else:
        gradients = 4 + (number if stage else 0)  # those of a micro-batch stay beside their sum
    return ParameterBytes(
        weights=number / (world if stage == 3 else 1),
        gradients=gradients,
        master=kept if stage else 0,
        moments=kept * len(MOMENTS.get(train.optim.optim, ())),
        average=kept * train.enable_ema,
        bucket=4 if stage == 3 else 0,
    )
