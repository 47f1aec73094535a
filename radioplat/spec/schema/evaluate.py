"""Spec section ``evaluate``, and those of its metrics that have fields of their own; each is off unless asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar

from radioplat.spec.ranges import number


def _weight_decays() -> list[float]:
    return [1e-4, 1e-3, 1e-2, 1e-1, 1.0]


class EvaluationPrecision(str, Enum):
    """What a checkpoint computes in while it is judged: its weights and activations are cast."""

    fp32 = "fp32"
    fp16 = "fp16"
    bf16 = "bf16"


@dataclass
class ModelEntry:
    """(+) One entry of ``evaluate.models``."""

    name: str = "???"
    path: str = "???"  # a checkpoint folder, a .safetensors of `export`, an .onnx or an .engine
    # of a checkpoint; unset: fp32. A file and an engine compute in what they were written in
    precision: EvaluationPrecision | None = None


@dataclass
class LinearProbeConfig:
    """(+) ``evaluate.linear_probe``: a linear classifier on frozen summaries of labelled training images."""

    enable: bool = False
    weight_decays: list[float] = number(_weight_decays, at_least=0)  # the best on ``held_out`` is taken
    held_out: float = number(0.2, above=0, below=1)  # share of each class of the training images that judges them
    max_iter: int = number(200, at_least=1)  # of L-BFGS, for each weight decay


class DecoderKind(str, Enum):
    """What is fitted on a frozen map."""

    linear = "linear"  # a layer at the map's grid, fitted to its optimum
    light = "light"  # convolutions up to four times the map's grid, trained


@dataclass
class LightDecoderConfig:
    """(+) How a light decoder is trained; of no use to a linear one."""

    width: int = number(128, at_least=1)  # channels
    steps: int = number(400, at_least=1)
    batch_size: int = number(16, at_least=1)  # maps
    lr: float = number(2e-3, above=0)  # at its highest: one cycle
    weight_decay: float = number(0.01, at_least=0)


@dataclass
class MaskedConfig:
    """(+) A decoder on frozen maps, fitted and judged on images with masks.

    Masks are PNGs of numbers: ``masks_dir/a/b.png`` belongs to ``a/b.<any image>`` of each folder of images; in the
    tars below ``shards_dir`` it is the member ``<key>.seg.png``.
    """

    roles: ClassVar[tuple[str, ...]] = ()  # the images of a sample: the fields of their folders without `_dir`
    members: ClassVar[tuple[str, ...]] = ()  # what stands in a shard between the key and the image's own extension

    masks_dir: str | None = None
    shards_dir: str | None = None  # in place of the folders
    num_classes: int = number(0, at_least=0, at_most=255)
    # the numbers in a mask that are class 0, 1, ...; empty: these numbers themselves
    class_values: list[int] = number(list, at_least=0, at_most=255)
    # the number of a pixel without a class; null: there is none
    ignore_index: int | None = number(255, at_least=0, at_most=255, hint="null: there is none.")
    val_masks_dir: str | None = None  # unset, and no val_shards_dir: ``val_share`` is held out, by name
    val_shards_dir: str | None = None
    val_share: float = number(0.25, above=0, below=1)
    max_images: int | None = number(None, at_least=2)  # per split; unset: all
    decoder: DecoderKind = DecoderKind.linear
    # views of each training image: the centred square, then crops and flips of dataset.augmentation
    views: int = number(1, at_least=1)
    weight_decays: list[float] = number(_weight_decays, at_least=0)  # of a linear decoder
    held_out: float = number(0.2, above=0, below=1)  # share of the training images that judges them
    max_iter: int = number(200, at_least=1)
    light: LightDecoderConfig = field(default_factory=LightDecoderConfig)

    @property
    def wanted(self) -> bool:
        """Whether it was asked for."""
        return bool(self.shards_dir) or any(getattr(self, f"{role}_dir") for role in self.roles)


@dataclass
class SegmentationConfig(MaskedConfig):
    """(+) ``evaluate.segmentation``: a class for each pixel of an image."""

    roles: ClassVar[tuple[str, ...]] = ("images",)
    members: ClassVar[tuple[str, ...]] = ("",)

    images_dir: str | None = None
    val_images_dir: str | None = None


@dataclass
class ChangeConfig(MaskedConfig):
    """(+) ``evaluate.change``: what has changed between two images of one place.

    The map of a pair is the difference of its two maps. Class 0 is no change; masks of 0 and 255, as change data sets
    often have, are ``class_values: [0, 255]`` and ``ignore_index: null``.
    """

    roles: ClassVar[tuple[str, ...]] = ("before", "after")
    members: ClassVar[tuple[str, ...]] = ("before.", "after.")

    before_dir: str | None = None
    after_dir: str | None = None
    num_classes: int = number(2, at_least=0, at_most=255)
    val_before_dir: str | None = None
    val_after_dir: str | None = None


@dataclass
class CorrespondenceConfig:
    """(+) ``evaluate.correspondence``: positions of held-out images found again in a warped copy of each."""

    enable: bool = False
    images: int = number(64, at_least=1)  # the first of the held-out images
    thresholds: list[float] = number(lambda: [0.05, 0.1, 0.2], above=0, at_most=1)  # shares of the image's side
    max_rotation: float = number(30.0, at_least=0, at_most=180)  # degrees, either way
    max_zoom: float = number(1.25, at_least=1, at_most=4)  # times, either way
    max_shift: float = number(0.1, at_least=0, at_most=0.5)  # share of the side, either way along each axis
    # how much the scale changes from edge to edge by perspective
    max_tilt: float = number(0.1, at_least=0, at_most=0.5)


@dataclass
class ZeroShotConfig:
    """(+) ``evaluate.zero_shot``: held-out images named by a text tower, through the head of its image tower."""

    text_tower: str | None = None  # a Hugging Face folder: CLIP or SigLIP with its tokenizer
    teacher: str | None = None  # whose summary shares the text's space
    class_names: list[str] = field(default_factory=list)  # in the order of the labels; empty: the index's own names
    templates: list[str] = field(default_factory=lambda: ["a photo of a {}."])


@dataclass
class EvaluateConfig:
    """Spec section ``evaluate``: what a trained student is worth on ``dataset.val_dataset``."""

    checkpoint: str | None = None  # default: results_dir/distill's (or train's) latest
    # (+) several models side by side, instead of the checkpoint: the others are compared with the first. A mapping of
    # names to paths will do
    models: list[ModelEntry] = field(default_factory=list)
    results_dir: str | None = None
    batch_size: int | None = number(None, at_least=1)
    # processes of this machine that encode, a GPU each; without one, each has its share of cores
    num_gpus: int = number(1, at_least=1)
    knn_k: int = number(20, at_least=1)
    knn_temperature: float = number(0.07, above=0)
    max_images: int | None = number(None, at_least=1)  # (+) per split; unset: all
    # (+) true: the EMA weights; false: the plain ones; unset: the EMA weights where the checkpoint has them
    use_ema: bool | None = None
    baseline: bool = True  # (+) evaluate the untrained student beside the trained one
    # (+) images shown in the PCA pictures; of detectors with their boxes
    pictures: int = number(4, at_least=0, hint="0: no pictures.")
    # (+) vectors that linear CKA compares; 0: no CKA
    cka_rows: int = number(1024, at_least=4, also=(0,), hint="0: no CKA.")
    # (+) sizes in pixels at which the student is judged beside its own: fidelity, and whether its features agree
    resolutions: list[int] = number(list, at_least=1, at_most=65_536)
    linear_probe: LinearProbeConfig = field(default_factory=LinearProbeConfig)  # (+)
    segmentation: SegmentationConfig = field(default_factory=SegmentationConfig)  # (+)
    change: ChangeConfig = field(default_factory=ChangeConfig)  # (+)
    correspondence: CorrespondenceConfig = field(default_factory=CorrespondenceConfig)  # (+)
    zero_shot: ZeroShotConfig = field(default_factory=ZeroShotConfig)  # (+)
