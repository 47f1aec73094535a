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
    results_dir: str | None = None  # folder of this task; default: results_dir/train_upsampler
    upsample_factor: int | None = number(None, at_least=1)  # 2 or 4; unset: the teacher's, or 2 if it has none
    steps: int = number(2000, at_least=1)  # optimizer steps
    batch_size: int = number(8, at_least=1)  # images of a step
    views: int = number(2, at_least=1)  # transformed views of each image for the consistency loss
    max_zoom: float = number(1.8, at_least=1)  # greatest zoom of a view
    # maximum distance of a view beyond the image's border, as a share of its side
    max_shift: float = number(0.15, at_least=0, at_most=0.5)
    lr: float = number(5e-4, above=0)  # learning rate
    weight_decay: float = number(0.01, at_least=0)  # weight decay of AdamW
    warmup_steps: int = number(50, at_least=0)  # steps of the warm-up
    fit_images: int = number(64, at_least=1)  # images for the mean and scale of the features
    # maximum number of validation images, from dataset.val_dataset, or else held out of the training images
    held_out: int = number(64, at_least=1)
    width: int = number(256, at_least=1)  # channels of the attention
    heads: int = number(4, at_least=1)  # attention heads
    window: int = number(7, at_least=1)  # side, in positions of the finer map
    debias: bool = True  # learn the backbone's position-dependent bias and subtract it
    log_interval: int = number(50, at_least=1)  # steps between lines of status.json
    seed: int | None = number(None, at_least=0)  # seed of weights and views; unset: train.seed
