"""Spec sections of the metrics below ``evaluate`` that have fields of their own; each is off unless asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


def _weight_decays() -> list[float]:
    return [1e-4, 1e-3, 1e-2, 1e-1, 1.0]


class JudgedPrecision(str, Enum):
    """What a checkpoint computes in while it is judged: its weights and activations are cast."""

    fp32 = "fp32"
    fp16 = "fp16"
    bf16 = "bf16"


@dataclass
class JudgedModel:
    """(+) One entry of ``evaluate.models``."""

    name: str = "???"
    path: str = "???"  # a checkpoint folder, a .safetensors of `export`, an .onnx or an .engine
    # of a checkpoint; unset: fp32. A file and an engine compute in what they were written in
    precision: JudgedPrecision | None = None


@dataclass
class LinearProbeConfig:
    """(+) ``evaluate.linear_probe``: a linear classifier on frozen summaries of labelled training images."""

    enable: bool = False
    weight_decays: list[float] = field(default_factory=_weight_decays)  # the best on ``held_out`` is taken
    held_out: float = 0.2  # share of each class of the training images that judges them
    max_iter: int = 200  # of L-BFGS, for each weight decay


@dataclass
class SegmentationConfig:
    """(+) ``evaluate.segmentation``: a linear classifier on frozen maps.

    A mask is a PNG of class numbers, 255 for none; ``masks_dir/a/b.png`` belongs to ``images_dir/a/b.<any image>``.
    """

    images_dir: str | None = None
    masks_dir: str | None = None
    num_classes: int = 0
    val_images_dir: str | None = None  # unset: ``val_share`` of images_dir is held out, by name
    val_masks_dir: str | None = None
    val_share: float = 0.25
    max_images: int | None = None  # per split; unset: all
    weight_decays: list[float] = field(default_factory=_weight_decays)
    held_out: float = 0.2  # share of the training images that judges them
    max_iter: int = 200


@dataclass
class CorrespondenceConfig:
    """(+) ``evaluate.correspondence``: positions of held-out images found again in a warped copy of each."""

    enable: bool = False
    images: int = 64  # the first of the held-out images
    thresholds: list[float] = field(default_factory=lambda: [0.05, 0.1, 0.2])  # shares of the image's side
    max_rotation: float = 30.0  # degrees, either way
    max_zoom: float = 1.25  # times, either way
    max_shift: float = 0.1  # share of the side, either way along each axis
    max_tilt: float = 0.1  # how much the scale changes from edge to edge by perspective


@dataclass
class ZeroShotConfig:
    """(+) ``evaluate.zero_shot``: held-out images named by a text tower, through the head of its image tower."""

    text_tower: str | None = None  # a Hugging Face folder: CLIP or SigLIP with its tokenizer
    teacher: str | None = None  # whose summary shares the text's space
    class_names: list[str] = field(default_factory=list)  # in the order of the labels; empty: the index's own names
    templates: list[str] = field(default_factory=lambda: ["a photo of a {}."])
