"""Training of an upsampler by consistency between the upsampled map of an image and the maps of its views.

With s the upsampler, f the frozen backbone, x an image, t a small transformation and d a blur learned together with s::

    L = mean over x and t of  |d(t(s(x))) - f(t(x))|^2 / D

in the normalised, de-biased space of the features, where a constant output has an error of about 1. It is the
multi-view consistency of FeatUp (Fu et al., ICLR 2024), as in FeatSharp (Ranzinger et al., 2025), with the squared
error only.

Bilinear upsampling, the baseline, has its own blur, trained on the same views.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from radioplat.errors import TrainingError
from radioplat.spec.schema.upsampler import TrainUpsamplerConfig
from radioplat.tasks.train_upsampler.downsampler import BlurDownsampler
from radioplat.tasks.train_upsampler.movements import draw_views, sample_views
from radioplat.teachers.base.teacher import FrozenTeacher
from radioplat.teachers.upsamplers.featsharp.featsharp import FeatSharp

_BLUR_LR = 100.0  # relative to the learning rate: the blur has few weights, which must change from -6 to 0 and above


@dataclass
class Consistency:
    """Mean squared error between transformed maps and maps of transformed images, relative to the feature variance."""

    featsharp: float
    bilinear: float


class UpsamplerTraining(nn.Module):
    """The upsampler, both blurs, and the frozen teacher (not part of the module's state).

    Args:
        teacher: without an upsampler.
        model: on the teacher's device.
        seed: for the views.
    """

    def __init__(self, teacher: FrozenTeacher, model: FeatSharp, config: TrainUpsamplerConfig, seed: int) -> None:
        super().__init__()
        self._teacher, self._config, self._seed = (teacher,), config, seed  # in a tuple: not a submodule
        self.model = model
        self.blur, self.bilinear_blur = (BlurDownsampler(model.config.factor).to(model.mean.device) for _ in range(2))

    def fit(self, images: torch.Tensor) -> None:
        """Compute the features' mean and scale on uint8 ``[N, 3, H, W]``."""
        size = self._config.batch_size
        self.model.fit(torch.cat([self._coarse(self._fine(part)) for part in images.split(size)]))

    def losses(self, images: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute errors of FeatSharp and of bilinear upsampling on uint8 ``[B, 3, factor * H, factor * W]``.

        Args:
            generator: for the views, on the CPU.
        """
        fine, config = self._fine(images), self._config
        coarse = self._coarse(fine)
        sharp = self.model.sharpen(fine, self._encode, coarse)
        wide = F.interpolate(self.model.normalise(coarse), size=sharp.shape[-2:], mode="bilinear", align_corners=False)
        ours, theirs = [], []
        for _ in range(config.views):
            theta = draw_views(len(fine), generator, config.max_zoom, config.max_shift)
            target = self._coarse(sample_views(fine, theta))
            ours.append(F.mse_loss(self.blur(sample_views(sharp, theta)), self.model.clean(target)))
            theirs.append(F.mse_loss(self.bilinear_blur(sample_views(wide, theta)), self.model.normalise(target)))
        return torch.stack(ours).mean(), torch.stack(theirs).mean()

    def train_on(self, batches: Iterable[torch.Tensor]) -> Iterator[tuple[int, float, float]]:
        """Take a step for each batch; yield (steps taken, loss, loss of bilinear upsampling).

        Raises:
            TrainingError: the loss is not finite.
        """
        config = self._config
        decayed = [p for p in self.model.parameters() if p.ndim > 1]
        others = [p for p in self.model.parameters() if p.ndim <= 1]
        blurs = [self.blur.logits, self.bilinear_blur.logits]
        groups = [
            {"params": decayed, "weight_decay": config.weight_decay},
            {"params": others, "weight_decay": 0.0},
            {"params": blurs, "weight_decay": 0.0, "lr": _BLUR_LR * config.lr},
        ]
        optimizer = torch.optim.AdamW(groups, lr=config.lr)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, _schedule(config.steps, config.warmup_steps))
        for step, images in enumerate(batches):
            loss, bilinear = self.losses(images, _generator(self._seed, step))
            if not torch.isfinite(loss):
                raise TrainingError(f"the loss of step {step + 1} is not finite", hint="Lower train_upsampler.lr.")
            optimizer.zero_grad()
            (loss + bilinear).backward()  # two losses without a common weight
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            yield step + 1, float(loss.detach()), float(bilinear.detach())

    @torch.no_grad()
    def measure(self, batches: Iterable[torch.Tensor]) -> Consistency:
        """Return the errors on held-out images; every call draws the same views."""
        total, count = torch.zeros(2, dtype=torch.float64), 0
        for number, images in enumerate(batches):
            errors = torch.stack(self.losses(images, _generator(self._seed, -1 - number))).double().cpu()
            total, count = total + errors * len(images), count + len(images)
        featsharp, bilinear = (total / max(count, 1)).tolist()
        return Consistency(featsharp, bilinear)

    def _fine(self, images: torch.Tensor) -> torch.Tensor:
        return self._teacher[0].normalise(images)

    def _coarse(self, fine: torch.Tensor) -> torch.Tensor:
        return self._encode(self.model.shrink(fine))

    def _encode(self, normalised: torch.Tensor) -> torch.Tensor:
        return self._teacher[0].encode(normalised)


def _generator(seed: int, step: int) -> torch.Generator:
    """Create the generator of one step; steps are independent. Held-out batches have negative numbers."""
    return torch.Generator().manual_seed((seed * 1_000_003 + step) % 2**63)


def _schedule(steps: int, warmup: int) -> Callable[[int], float]:
    """Return the learning rate factor: linear warm-up, then a cosine to 0."""

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))

    return factor
