"""Spec section ``train_upsampler``, and what a teacher's ``adaptor`` may be."""

from __future__ import annotations

from dataclasses import dataclass

from radioplat.spec.ranges import number

FEATSHARP = "featsharp"  # the one value of a teacher's `adaptor`
FACTORS = (2, 4)


@dataclass
class TrainUpsamplerConfig:
    """(+) Spec section ``train_upsampler``: FeatSharp for one teacher, trained on ``dataset.train_dataset``."""

    teacher: str | None = None  # by name; unset: the only one
    results_dir: str | None = None
    upsample_factor: int | None = number(None, at_least=1)  # 2 or 4; unset: the teacher's, and 2 where it has none
    steps: int = number(2000, at_least=1)
    batch_size: int = number(8, at_least=1)
    views: int = number(2, at_least=1)  # moved views of each image that a step is consistent with
    max_zoom: float = number(1.8, at_least=1)
    # how far a view may reach beyond the image, as a share of its side
    max_shift: float = number(0.15, at_least=0, at_most=0.5)
    lr: float = number(5e-4, above=0)
    weight_decay: float = number(0.01, at_least=0)
    warmup_steps: int = number(50, at_least=0)
    fit_images: int = number(64, at_least=1)  # whose features say the mean and the scale
    # at most so many images of dataset.val_dataset; without one they are kept out of training
    held_out: int = number(64, at_least=1)
    width: int = number(256, at_least=1)  # of the attention
    heads: int = number(4, at_least=1)
    window: int = number(7, at_least=1)  # side, in positions of the finer map
    debias: bool = True  # learn the backbone's position pattern and take it away
    log_interval: int = number(50, at_least=1)
    seed: int | None = number(None, at_least=0)  # unset: train.seed
