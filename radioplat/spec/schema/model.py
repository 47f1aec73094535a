"""Spec section ``model``: the student backbone (teachers reuse ``BackboneConfig``)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from radioplat.spec.ranges import number


class CpeCrop(str, Enum):
    """Which part of the position table an image uses in training.

    ``area``: the drawn aspect ratio is that of the crop's sides. ``sides``, TAO's and NVlabs': it multiplies one side
    and divides the other, crops reach the table's outermost positions, and an image of the table's own size is not
    cropped.
    """

    area = "area"
    sides = "sides"


@dataclass
class BackboneConfig:
    """A backbone: TAO's name or any timm model name, and the source of its weights."""

    # TAO's or timm's name (NAME, timm/NAME or timm:NAME); required unless the weights are a radioplat checkpoint, which
    # contains it
    type: str | None = None
    pretrained_backbone_path: str | None = (
        None  # file or folder of weights to start from, or the address of fetched ones
    )
    freeze_backbone: bool = False  # train the heads alone
    # normalisation layers keep their statistics and weights; unset: only BatchNorm of pretrained weights that see small
    # micro-batches
    freeze_norm: bool | None = None
    # channels, height and width of TAO's specs; the size is dataset.img_size
    input_dim: list[int] = number(lambda: [3, 224, 224], at_least=1)
    # of a teacher, [n]: it has a classifier of n classes
    output_dim: list[int] = number(list, at_least=1)
    # TAO's field, which this version does not support
    feature_dim: int | None = number(None, at_least=1)
    # mean of each channel, of values in [0, 1]; unset: dataset.augmentation.mean
    student_norm_mean: list[float] = number(list)
    # standard deviation of each channel; unset: dataset.augmentation.std
    student_norm_std: list[float] = number(list, above=0)
    # (+) architecture arguments that override those of `type`: embed_dim, depth, num_heads, ...
    kwargs: dict[str, Any] = field(default_factory=dict)
    # (+) RADIO ViT: side in pixels of the position table that CPE crops from, and the number of registers after the
    # class tokens: fixed, or enough to make their sum a multiple of register_multiple.
    cpe_max_size: int | None = number(None, at_least=1, at_most=65_536)
    cpe: bool = True  # random crops of the table during training; false: always the whole table, as in evaluation
    cpe_crop: CpeCrop = CpeCrop.area
    position_dropout: float = number(0.0, at_least=0, below=1)  # share of images without positions, in training
    cpe_num_registers: int | None = number(None, at_least=0)  # number of registers of a RADIO ViT
    # class tokens and registers together are a multiple of this
    register_multiple: int | None = number(None, at_least=1)
    # (+) student only: DropPath rate, and linear layers reparametrized as (gamma / sigma(W)) W
    drop_path: float = number(0.0, at_least=0, below=1)
    # divide weights of linear layers by their largest singular value, times a learned factor
    spectral_reparam: bool = False


class ModelTask(str, Enum):
    """Model to train: a backbone with heads for its teachers and labels, or a detector on a backbone."""

    features = "features"
    detection = "detection"


@dataclass
class DetectorConfig:
    """(+) The detector on the backbone, with ``model.task: detection``."""

    kind: str = "rtdetr_v2"  # or rtdetr; see radioplat.models.detectors.registry
    # the detector's configuration: num_queries, d_model, decoder_layers, num_denoising, weight_loss_giou, ...
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class ModelConfig:
    """Spec section ``model``."""

    backbone: BackboneConfig = field(default_factory=BackboneConfig)  # the student's backbone
    task: ModelTask = ModelTask.features  # (+)
    detector: DetectorConfig = field(default_factory=DetectorConfig)  # (+)
