"""Spec section ``train_upsampler``, and what a teacher's ``adaptor`` may be."""

from __future__ import annotations

from dataclasses import dataclass

FEATSHARP = "featsharp"  # the one value of a teacher's `adaptor`
FACTORS = (2, 4)


@dataclass
class TrainUpsamplerConfig:
    """(+) Spec section ``train_upsampler``: FeatSharp for one teacher, trained on ``dataset.train_dataset``."""

    teacher: str | None = None  # by name; unset: the only one
    results_dir: str | None = None
    upsample_factor: int | None = None  # 2 or 4; unset: the teacher's, and 2 where it has none
    steps: int = 2000
    batch_size: int = 8
    views: int = 2  # moved views of each image that a step is consistent with
    max_zoom: float = 1.8
    max_shift: float = 0.15  # how far a view may reach beyond the image, as a share of its side
    lr: float = 5e-4
    weight_decay: float = 0.01
    warmup_steps: int = 50
    fit_images: int = 64  # whose features say the mean and the scale
    held_out: int = 64  # at most so many images of dataset.val_dataset; without one they are kept out of training
    width: int = 256  # of the attention
    heads: int = 4
    window: int = 7  # side, in positions of the finer map
    debias: bool = True  # learn the backbone's position pattern and take it away
    log_interval: int = 50
    seed: int | None = None  # unset: train.seed
