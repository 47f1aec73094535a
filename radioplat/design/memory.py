"""Bytes of a trained parameter and of a micro-batch on each worker, for `plan`, its warnings and the first pass.

:func:`parameter_bytes` is about training, and :func:`checkpoint_bytes` about what saves need beside it.

Counted as by Rajbhandari et al. (ZeRO, 2020, section 3): weights, gradients and optimizer state, each divided by the
number of workers from a ZeRO stage on. It differs in two points, because DeepSpeed sums gradients in fp32 (see
:mod:`radioplat.training.engine.deepspeed_engine`): in 16 bits a summed gradient has 4 bytes, not 2, at stage 1 in
addition to those of a micro-batch; and in fp32 ZeRO also has a copy of the weights for the optimizer. Not included:
activations, the one or two buckets in which stages 1 and 2 send gradients during a backward pass (of at most
:data:`BUCKET` elements), and at stage 3 parameters of fewer than 100,000 elements, which DeepSpeed does not shard.

A validation adds :func:`validation_bytes` between two steps, when no activations of training exist.

The engine ``ddp`` (:mod:`radioplat.training.engine.ddp_engine`) shards nothing. In 16 bits it has the same tensors as
stage 1 with one worker, in fp32 those of stage 0. ``train.reduction: exact`` adds up in float64 sums of their own, and
while it adds needs as much again for at most :data:`BUCKET` parameters, which is not included.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from radioplat.optim.optimizer import MOMENTS
from radioplat.spec.resolved.precision import precision_of
from radioplat.spec.resolved.reduction import is_exact
from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.spec.resolved.zero import BUCKET, zero_stage
from radioplat.spec.schema.train import EngineName, Precision, TrainConfig

if TYPE_CHECKING:  # the engines need this file where images are not decoded
    from radioplat.data.views.render import ViewSpec
    from radioplat.teachers.base.info import TeacherInfo

AHEAD = 2  # micro-batches on the device that wait for the student (radioplat.training.feed.prefetch)


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


@dataclass(frozen=True)
class CheckpointBytes:
    """Bytes of a trained parameter that saves of checkpoints take beside those of training.

    Attributes:
        device: copies on the GPU of a worker, kept from the first save on. If less than :data:`SPARE` of the memory
            would stay free then, there are none, and the copies go to the host at once.
        first_host: buffers of whole tensors in the host memory of the first worker. PyTorch rounds each of these
            pinned buffers, one a moment, up to a power of two.
        other_host: buffers in the host memory of each other worker.
    """

    device: float
    first_host: float
    other_host: float


SPARE = 0.1  # share of a GPU's memory that copies for a checkpoint leave free


def checkpoint_bytes(train: TrainConfig, world: int) -> CheckpointBytes:
    """Return the bytes that checkpoints of a run on ``world`` workers need for a parameter.

    Copied are fp32 weights, moments and EMA, on each worker what its optimizer updates. Without sharding the first
    worker has everything.
    """
    shards = world if train.engine is EngineName.deepspeed and zero_stage(train) else 1
    numbers = 1 + len(MOMENTS.get(train.optim.optim, ())) + train.enable_ema
    return CheckpointBytes(
        device=0 if train.offload else 4 * numbers / shards,
        first_host=4 * numbers,
        other_host=4 * numbers / shards if shards > 1 else 0,
    )


def validation_bytes(train: TrainConfig, parameters: int, quantized: bool = False) -> int:
    """Return the bytes that a validation adds on the device of each worker: a whole copy of the student, at any stage.

    The copy is freed when the validation ends. Beside it are the activations of a forward pass of
    ``dataset.val_batch_size`` images, for kNN a block of at most 32,768 rows of features, and this worker's queries.
    Features of all other images are in host memory, each on the worker that computed it.

    Args:
        parameters: of the student, with heads and without peers.
        quantized: it has quantizers and is measured in fp32.
    """
    return parameters * (4 if quantized or precision_of(train) is Precision.fp32 else 2)


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
        gradients = 4 + 8 + (number if low else 0)  # the sums are float64, and then their means fp32
    return ParameterBytes(
        weights=number / (world if stage == 3 else 1),
        gradients=gradients,
        master=kept if stage else 0,
        moments=kept * len(MOMENTS.get(train.optim.optim, ())),
        average=kept * train.enable_ema,
        bucket=4 if stage == 3 else 0,
    )


def micro_batch_bytes(
    size: int,
    views: Iterable[ViewSpec],
    teachers: Iterable[ResolvedTeacher],
    infos: Mapping[str, TeacherInfo],
    grids: Mapping[str, tuple[int, int]],
) -> int:
    """Return the bytes of ``size`` images in ``views``, uint8, and of the answers of ``teachers`` to them, bf16.

    An answer is counted with vector and map, also where the losses need only one of them.
    """
    numbers = 0
    for teacher in teachers:
        info, (rows, columns) = infos[teacher.name], grids[teacher.name]
        numbers += info.summary_dim + rows * columns * info.spatial_dim
    return size * (sum(3 * view.size**2 for view in views) + 2 * numbers)
