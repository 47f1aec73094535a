"""Spec section ``dataset``: sources, their mixture and filters, views and augmentation."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from radioplat.spec.ranges import SECONDS, number


class WeightMode(str, Enum):
    """Sampling weight of an image whose hash occurs f times."""

    inv_frequency = "inv_frequency"  # 1/f
    inv_sq_frequency = "inv_sq_frequency"  # 1/f^2
    inv_log_frequency = "inv_log_frequency"  # 1/log(1+f)
    uniform = "uniform"  # 1


@dataclass
class TarSource:
    """One corpus of WebDataset shards, ``{root_dir}/**/*.tar``."""

    root_dir: str = "???"  # a folder, s3://... or gs://...
    # TAO's field: most samples of a shard; only compared with the shards
    samples_per_file: int = number(10_000, at_least=1)
    steps_per_epoch: int = number(10_000, at_least=1)  # an epoch has the largest of the sources, in optimizer steps
    scale_factor: float = number(1.0, above=0)  # share of this source in the mixture, relative to the other sources
    # (+) which member of a sample is its image: all that follows the first dot of its name, for example rgb.jpg
    image_extension: str | None = None


@dataclass
class ResolutionFilter:
    """Inclusive thresholds on the native resolution; an unset one does not apply."""

    min_short_side: int | None = number(None, at_least=0)  # pixels of the shorter side, at least
    min_long_side: int | None = number(None, at_least=0)  # pixels of the longer side, at least
    min_area: int | None = number(None, at_least=0)  # width times height in pixels, at least
    max_aspect_ratio: float | None = number(None, at_least=1)  # longer side over shorter side, at most


@dataclass
class SplitConfig:
    """One split: tar sources or a folder of images."""

    images_dir: str | None = None  # a folder of image files, searched with its subfolders; instead of tar_data_sources
    tar_data_sources: list[TarSource] = field(default_factory=list)  # corpora of shards, mixed by their scale_factor
    # seed of the sample order, and of crops, flips and colours
    seed: int = number(42, at_least=0)
    # student and teachers see the image through different random quadrilaterals; losses cover the overlap
    full_equivariance: bool = False
    # student and teachers see different crops, moved by whole patches; losses cover the overlap
    shift_equivariance: bool = False
    data_weight_mode: WeightMode | None = None  # weights of images that occur several times, by content; unset: none
    # decode and ask teachers ahead of the student, dataset.prefetch_batches micro-batches; false: one
    prefetch: bool = True
    native_resolution_filter: ResolutionFilter = field(default_factory=ResolutionFilter)
    dedup: bool = False  # (+) train on one of several images with the same content
    # (+) COCO-format annotations of the images in images_dir; with model.task: detection
    coco: str | None = None
    # (+) give images of a single colour weight zero; found when they are decoded, they keep their place in the order
    reject_uniform_color: bool = False
    # (+) random views of an image in a row, which one micro-batch decodes once
    views_per_step: int = number(1, at_least=1)


@dataclass
class RandomFlip:
    """Mirror an image left-right or top-bottom."""

    enable: bool = True  # false: never
    hflip_probability: float = number(0.5, at_least=0, at_most=1)  # of a mirrored left and right
    vflip_probability: float = number(0.0, at_least=0, at_most=1)  # of a mirrored top and bottom


@dataclass
class RandomCrop:
    """Random resized crop: area as a share of the image, and aspect ratio (width over height)."""

    enable: bool = True  # false: the whole image, resized and cropped at its centre
    # least and greatest area of a crop, as a share of the image
    scale_range: list[float] = number(lambda: [0.25, 1.0], above=0, at_most=1)
    # least and greatest width over height of a crop
    ratio_range: list[float] = number(lambda: [0.75, 4.0 / 3.0], above=0)


@dataclass
class Switch:
    """An augmentation that is on or off."""

    enable: bool = False  # true: apply it


@dataclass
class RandomRotate(Switch):
    """Rotate by a random one of ``angle_list`` (degrees, counter-clockwise), all equally likely."""

    rotate_probability: float = number(0.5, at_least=0, at_most=1)  # probability, of an image
    angle_list: list[float] = number(lambda: [90.0, 180.0, 270.0])  # degrees, counter-clockwise


@dataclass
class RandomColor(Switch):
    """Scale brightness, contrast and saturation by 1 +- the field, and rotate the hue by up to +-hue * 360 degrees."""

    brightness: float = number(0.3, at_least=0)  # greatest relative change
    contrast: float = number(0.3, at_least=0)  # greatest relative change
    saturation: float = number(0.3, at_least=0)  # greatest relative change
    hue: float = number(0.3, at_least=0, at_most=0.5)  # greatest rotation of the hue, as a share of the circle
    color_probability: float = number(1.0, at_least=0, at_most=1)  # probability, of an image


@dataclass
class RandomErase(Switch):
    """Fill a random rectangle with grey."""

    erase_probability: float = number(0.2, at_least=0, at_most=1)  # probability, of an image


@dataclass
class ScaleRandomCrop(Switch):
    """Resize to ``scale_range`` times what fills the view and crop at random; replaces ``random_crop``."""

    scale_range: list[float] = number(lambda: [1.0, 1.2], at_least=1)  # least and greatest factor


@dataclass
class AugmentationConfig:
    """Augmentation of an image, applied once and shared by the student and its teachers."""

    random_flip: RandomFlip = field(default_factory=RandomFlip)
    random_crop: RandomCrop = field(default_factory=RandomCrop)
    with_random_crop: bool = True  # TAO's switch of random_crop: both must be true
    random_rotate: RandomRotate = field(default_factory=RandomRotate)
    random_color: RandomColor = field(default_factory=RandomColor)
    random_erase: RandomErase = field(default_factory=RandomErase)
    random_aug: Switch = field(default_factory=Switch)  # AutoAugment's operations on colours
    with_scale_random_crop: ScaleRandomCrop = field(default_factory=ScaleRandomCrop)
    with_random_blur: bool = False  # blur some images
    # image sizes, all equally likely; or, as in TAO, a list of {size: probability}
    multi_scales: list[Any] = field(default_factory=list)
    # (+) how many different random views an image has, then the first again; 0: never the same again;
    # unset: by the number of passes, if the teachers' features of the views fit on the disk
    views_per_image: int | None = number(None, at_least=0)
    # mean of each channel, of values in [0, 1]; unset: for the student that of its pretrained weights if it is
    # known, else
    # ImageNet's
    mean: list[float] = number(list)
    std: list[float] = number(list, above=0)  # standard deviation of each channel, of values in [0, 1]; unset: as mean

    @property
    def is_random(self) -> bool:
        """True if two views of an image, at one size, can differ."""
        flip = self.random_flip
        return (
            (self.random_crop.enable and self.with_random_crop)
            or (flip.enable and max(flip.hflip_probability, flip.vflip_probability) > 0)
            or self.random_rotate.enable
            or self.random_color.enable
            or self.random_erase.enable
            or self.random_aug.enable
            or self.with_scale_random_crop.enable
            or self.with_random_blur
        )


@dataclass
class DatasetConfig:
    """Spec section ``dataset``."""

    img_size: int = number(224, at_least=1, at_most=65_536)  # side in pixels of the student's view
    batch_size: int = number(8, at_least=1)  # samples of a micro-batch: one forward and backward pass of one worker
    # processes that decode images, for each training worker; threads in a run of one process
    workers: int = number(8, at_least=1)
    num_classes: int = number(0, at_least=0)  # number of classes of the labels; 0: no classifier
    # (+) class names of detection shards, by label; a COCO file has its own
    classes: list[str] = field(default_factory=list)
    # side in pixels of held-out images; unset: img_size
    val_img_size: int | None = number(None, at_least=1, at_most=65_536)
    val_batch_size: int | None = number(None, at_least=1)  # images of a batch of validation; unset: batch_size
    knn_validation: bool = False  # validate by kNN too: held-out images are compared with training images
    # batches of training images that kNN compares with; unset: all
    knn_max_train_batches: int | None = number(None, at_least=1)
    augmentation: AugmentationConfig = field(default_factory=AugmentationConfig)
    train_dataset: SplitConfig = field(default_factory=SplitConfig)  # images to train on
    val_dataset: SplitConfig = field(default_factory=SplitConfig)  # held-out images, for validation and `evaluate`
    # images of `inference`, and of the stage evaluate of `compress`
    test_dataset: SplitConfig = field(default_factory=SplitConfig)
    # images that `quantize` measures ranges on; empty: of train_dataset
    quant_calibration_dataset: SplitConfig = field(default_factory=SplitConfig)
    # (+) folder of the shard index; default: results_dir/index
    index_dir: str | None = None
    # (+) pixels; larger images are rejected by their header, so a decompression bomb is never decoded
    max_pixels: int = number(178_956_970, at_least=1)
    # (+) share of recent samples that may be unreadable; above it the run stops with a report
    max_bad_fraction: float = number(0.05, at_least=0, at_most=1)
    # (+) seconds after which a read that hangs is retried in another process; a shard that fails for as long, while
    # others of its source can be read, counts as unreadable
    read_timeout_s: float = number(120.0, above=0, at_most=SECONDS)
    # (+) seconds that a run waits for failing or unreachable storage before it ends
    storage_timeout_s: float = number(1800.0, above=0, at_most=SECONDS)
    # (+) treat an image whose bytes do not match the sidecar's sha256 or md5 as unreadable
    verify_hashes: bool = False
    # (+) micro-batches per training worker that are decoded and sent to the teachers ahead of the student
    prefetch_batches: int = number(4, at_least=1)
