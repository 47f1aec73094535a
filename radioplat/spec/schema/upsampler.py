"""Spec section ``train_upsampler``, and the values of a teacher's ``adaptor``."""

from __future__ import annotations

from dataclasses import dataclass

from radioplat.spec.ranges import number

FEATSHARP = "featsharp"  # the only value of a teacher's `adaptor`
FACTORS = (2, 4)


@dataclass
class TrainUpsamplerConfig:
    """(+) Spec section ``train_upsampler``: train FeatSharp for one teacher on ``dataset.train_dataset``."""

    teacher: str | None = None  # its name; unset: the only teacher
    results_dir: str | None = None
    upsample_factor: int | None = number(None, at_least=1)  # 2 or 4; unset: the teacher's, or 2 if it has none
    steps: int = number(2000, at_least=1)
    batch_size: int = number(8, at_least=1)
    views: int = number(2, at_least=1)  # transformed views of each image for the consistency loss
    max_zoom: float = number(1.8, at_least=1)
    # maximum distance of a view beyond the image's border, as a share of its side
    max_shift: float = number(0.15, at_least=0, at_most=0.5)
    lr: float = number(5e-4, above=0)
    weight_decay: float = number(0.01, at_least=0)
    warmup_steps: int = number(50, at_least=0)
    fit_images: int = number(64, at_least=1)  # images for the mean and scale of the features
    # maximum number of validation images, from dataset.val_dataset, or else held out of the training images
    held_out: int = number(64, at_least=1)
    width: int = number(256, at_least=1)  # channels of the attention
    heads: int = number(4, at_least=1)
    window: int = number(7, at_least=1)  # side, in positions of the finer map
    debias: bool = True  # learn the backbone's position-dependent bias and subtract it
    log_interval: int = number(50, at_least=1)
    seed: int | None = number(None, at_least=0)  # unset: train.seed
