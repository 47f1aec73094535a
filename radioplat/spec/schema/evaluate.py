"""Spec sections ``evaluate``, with a section for each optional metric, and ``inference``."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar

from radioplat.spec.import_paths import NameOrImportPath
from radioplat.spec.ranges import number


def _weight_decays() -> list[float]:
    return [1e-4, 1e-3, 1e-2, 1e-1, 1.0]


class MetricName(NameOrImportPath):
    """A figure of an evaluation that gates and objectives compare; or a user's own, as ``package.module:name``."""

    fidelity = "fidelity"  # mean over teachers and kinds
    knn = "knn"
    top1 = "top1"  # of the student's own classifier
    mAP = "mAP"  # of a detector


class EvaluationPrecision(str, Enum):
    """Number format that a checkpoint's weights and activations are cast to for the evaluation."""

    fp32 = "fp32"
    fp16 = "fp16"
    bf16 = "bf16"


@dataclass
class ModelEntry:
    """(+) One entry of ``evaluate.models``."""

    name: str = "???"  # its name in tables and the report
    path: str = "???"  # a checkpoint folder, a .safetensors of `export`, an .onnx or an .engine
    # for a checkpoint; unset: fp32. ONNX files and engines have their own
    precision: EvaluationPrecision | None = None


@dataclass
class LinearProbeConfig:
    """(+) ``evaluate.linear_probe``: a linear classifier on frozen summaries of labelled training images."""

    enable: bool = False  # true: measure it
    weight_decays: list[float] = number(_weight_decays, at_least=0)  # candidates; the best on ``held_out`` is used
    # share of each class of the training images that selects the weight decay
    held_out: float = number(0.2, above=0, below=1)
    max_iter: int = number(200, at_least=1)  # of L-BFGS, for each weight decay


class DecoderKind(str, Enum):
    """Decoder fitted on a frozen feature map."""

    linear = "linear"  # one linear layer at the map's resolution, fitted to convergence
    light = "light"  # convolutions up to four times the map's resolution, trained by gradient descent


@dataclass
class LightDecoderConfig:
    """(+) Training of a ``light`` decoder."""

    width: int = number(128, at_least=1)  # channels of its layers
    steps: int = number(400, at_least=1)  # optimizer steps
    batch_size: int = number(16, at_least=1)  # maps of a step
    lr: float = number(2e-3, above=0)  # peak of a one-cycle schedule
    weight_decay: float = number(0.01, at_least=0)  # weight decay of AdamW


@dataclass
class MaskedConfig:
    """(+) A decoder on frozen maps, fitted and evaluated on images with masks.

    Masks are PNGs of class numbers: ``masks_dir/a/b.png`` belongs to ``a/b.<extension>`` in each image folder; in tar
    files below ``shards_dir`` it is the member ``<key>.seg.png``.
    """

    roles: ClassVar[tuple[str, ...]] = ()  # names of the images of a sample: their folder fields without `_dir`
    members: ClassVar[tuple[str, ...]] = ()  # for each image, the text between key and extension in a shard

    masks_dir: str | None = None  # folder of the masks of training images
    shards_dir: str | None = None  # instead of the folders
    num_classes: int = number(0, at_least=0, at_most=255)  # number of classes, without pixels that have none
    # mask values of class 0, 1, ...; empty: the value is the class
    class_values: list[int] = number(list, at_least=0, at_most=255)
    # mask value of pixels without a class; null: all pixels have one
    ignore_index: int | None = number(255, at_least=0, at_most=255, hint="null: all pixels have a class.")
    # folder of the masks of held-out images
    # unset, without val_shards_dir: ``val_share`` of the images is held out, chosen by name
    val_masks_dir: str | None = None
    val_shards_dir: str | None = None  # shards of held-out images
    val_share: float = number(0.25, above=0, below=1)  # share of the images that is held out
    max_images: int | None = number(None, at_least=2)  # per split; unset: all
    decoder: DecoderKind = DecoderKind.linear
    # views of each training image: first the centre crop, then random crops and flips as in dataset.augmentation
    views: int = number(1, at_least=1)
    weight_decays: list[float] = number(_weight_decays, at_least=0)  # candidates for a linear decoder
    held_out: float = number(0.2, above=0, below=1)  # share of the training images that selects among them
    max_iter: int = number(200, at_least=1)  # iterations of the optimizer of a linear decoder
    light: LightDecoderConfig = field(default_factory=LightDecoderConfig)  # training of a light decoder

    @property
    def wanted(self) -> bool:
        """True if the spec asks for this metric."""
        return bool(self.shards_dir) or any(getattr(self, f"{role}_dir") for role in self.roles)


@dataclass
class SegmentationConfig(MaskedConfig):
    """(+) ``evaluate.segmentation``: predict the class of each pixel."""

    roles: ClassVar[tuple[str, ...]] = ("images",)
    members: ClassVar[tuple[str, ...]] = ("",)

    images_dir: str | None = None  # folder of training images
    val_images_dir: str | None = None  # folder of held-out images


@dataclass
class ChangeConfig(MaskedConfig):
    """(+) ``evaluate.change``: detect changes between two images of the same place.

    The decoder's input is the difference of the two feature maps. Class 0 is no change; for masks of 0 and 255, which
    are common, set ``class_values: [0, 255]`` and ``ignore_index: null``.
    """

    roles: ClassVar[tuple[str, ...]] = ("before", "after")
    members: ClassVar[tuple[str, ...]] = ("before.", "after.")

    before_dir: str | None = None  # folder of the earlier images
    after_dir: str | None = None  # folder of the later images
    num_classes: int = number(2, at_least=0, at_most=255)  # number of classes; class 0 is no change
    val_before_dir: str | None = None  # folder of the earlier held-out images
    val_after_dir: str | None = None  # folder of the later held-out images


@dataclass
class CorrespondenceConfig:
    """(+) ``evaluate.correspondence``: match positions of held-out images with those in a warped copy."""

    enable: bool = False  # true: measure it
    images: int = number(64, at_least=1)  # number of held-out images, from the first on
    thresholds: list[float] = number(lambda: [0.05, 0.1, 0.2], above=0, at_most=1)  # shares of the image's side
    max_rotation: float = number(30.0, at_least=0, at_most=180)  # degrees, in both directions
    max_zoom: float = number(1.25, at_least=1, at_most=4)  # factor, in both directions
    max_shift: float = number(0.1, at_least=0, at_most=0.5)  # share of the side, in both directions along each axis
    # perspective: relative change of scale from edge to edge
    max_tilt: float = number(0.1, at_least=0, at_most=0.5)


@dataclass
class ZeroShotConfig:
    """(+) ``evaluate.zero_shot``: classify held-out images by a text encoder, through the head of its image encoder."""

    text_tower: str | None = None  # Hugging Face folder of CLIP or SigLIP, with the tokenizer
    teacher: str | None = None  # teacher whose summary is in the text encoder's space
    class_names: list[str] = field(default_factory=list)  # in label order; empty: the names in the index
    # sentences for the text encoder; {} is the class name
    templates: list[str] = field(default_factory=lambda: ["a photo of a {}."])


@dataclass
class EvaluateConfig:
    """Spec section ``evaluate``: measure a trained student on ``dataset.val_dataset``."""

    checkpoint: str | None = None  # checkpoint to read; default: results_dir/distill's (or train's) latest
    # (+) several models instead of the checkpoint, each compared with the first; also as a mapping of names to paths
    models: list[ModelEntry] = field(default_factory=list)
    results_dir: str | None = None  # folder of this task; default: results_dir/evaluate
    # images of a batch; unset: dataset.val_batch_size, else dataset.batch_size
    batch_size: int | None = number(None, at_least=1)
    # encoding processes on this machine, with one GPU each; without GPUs they share the cores
    num_gpus: int = number(1, at_least=1)
    knn_k: int = number(20, at_least=1)  # neighbours that vote
    knn_temperature: float = number(0.07, above=0)  # of the weights of votes, exp(similarity / temperature)
    max_images: int | None = number(None, at_least=1)  # (+) per split; unset: all
    # (+) which weights of a checkpoint; true: the moving average; false: plain ones; unset: the average if it has one
    use_ema: bool | None = None
    baseline: bool = True  # (+) evaluate the untrained student, too
    # (+) number of PCA pictures; for detectors, pictures with boxes
    pictures: int = number(4, at_least=0, hint="0: no pictures.")
    # (+) feature vectors that linear CKA compares; 0: no CKA
    cka_rows: int = number(1024, at_least=4, also=(0,), hint="0: no CKA.")
    # (+) further image sizes in pixels: fidelity there, and agreement of the features across sizes
    resolutions: list[int] = number(list, at_least=1, at_most=65_536)
    # (+) numbers of tokens of a radio1d_vit_*: kNN and fidelity with so many, too
    num_tokens: list[int] = number(list, at_least=1)
    linear_probe: LinearProbeConfig = field(default_factory=LinearProbeConfig)  # (+)
    segmentation: SegmentationConfig = field(default_factory=SegmentationConfig)  # (+)
    change: ChangeConfig = field(default_factory=ChangeConfig)  # (+)
    correspondence: CorrespondenceConfig = field(default_factory=CorrespondenceConfig)  # (+)
    zero_shot: ZeroShotConfig = field(default_factory=ZeroShotConfig)  # (+)
    # (+) a user's own metrics by import path, package.module:name of a class or a function
    metrics: list[str] = field(default_factory=list)

    def without_options(self) -> EvaluateConfig:
        """Return a config for kNN, fidelity and accuracy alone, on the same images."""
        same = ("checkpoint", "models", "batch_size", "num_gpus", "knn_k", "knn_temperature", "max_images", "use_ema")
        config = EvaluateConfig(**{name: getattr(self, name) for name in same})
        config.baseline, config.pictures, config.cka_rows = False, 0, 0
        return config


@dataclass
class InferenceConfig:
    """Spec section ``inference``: use a model on the images of ``dataset.test_dataset.images_dir``."""

    # what to read; default: results_dir/distill's (or train's) latest; a checkpoint or an ONNX file
    checkpoint: str | None = None
    trt_engine: str | None = None  # an engine in place of the checkpoint
    results_dir: str | None = None  # folder of this task; default: results_dir/inference
    batch_size: int | None = number(None, at_least=1)  # unset: dataset.batch_size
    # boxes with at least this score are drawn and written as KITTI labels; the table has all
    conf_threshold: float = number(0.5, at_least=0, at_most=1)
    top_k: int = number(5, at_least=1)  # (+) classes of a classifier for each image
    maps: bool = False  # (+) write the spatial maps, too
    # (+) number of images with a picture of their features or boxes
    pictures: int = number(4, at_least=0, hint="0: no pictures.")
