"""Features of some images, for pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from radioplat.data.loading.image_files import ImageFile, view_batches
from radioplat.errors import DataError
from radioplat.evaluation.measure.windows import Windows
from radioplat.evaluation.metrics.metric import Setup
from radioplat.evaluation.models.evaluated_model import EvaluatedModel

POSITIONS = 14  # a side, at least; nobody recognises anything in a coarser map


@dataclass(frozen=True)
class Shown:
    """Images and models that the picture of maps shows, in place of held-out images and all models.

    Attributes:
        models: names of models of the evaluation, from left to right.
        about: a sentence about the images, for the caption.
    """

    images: Sequence[ImageFile]
    models: Sequence[str]
    about: str

    def views(self, size: int) -> np.ndarray:
        """Return the centre crops, uint8 ``[N, 3, size, size]``.

        Raises:
            DataError: an image cannot be read.
        """
        (views,) = view_batches(self.images, size, len(self.images))
        for view in views:
            if view.pixels is None:
                raise DataError(view.error, where=view.image.name)
        return np.stack([view.pixels for view in views if view.pixels is not None])


@dataclass(frozen=True)
class SampleMaps:
    """Maps of a few images, of at least :data:`POSITIONS` positions a side.

    A model whose map is coarser sees a larger view of the image in overlapping windows of its own size.

    Attributes:
        images: uint8 ``[N, 3, S, S]``.
        maps: features of unit length, ``[N, h, w, D]``, by model; a student's in a teacher's space is
            ``<student>/<teacher>``.
    """

    images: np.ndarray
    maps: dict[str, torch.Tensor]

    @classmethod
    def of(cls, setup: Setup, names: Iterable[str], views: Callable[[int], np.ndarray]) -> SampleMaps:
        """Encode the images.

        Args:
            names: of the models.
            views: returns the images at a size in pixels, uint8 ``[N, 3, size, size]``.

        Raises:
            RadioplatError: a model cannot encode, or an image cannot be read.
        """
        images, maps = np.zeros((0, 3, 0, 0), np.uint8), dict[str, torch.Tensor]()
        for name in names:
            model = setup.models[name]
            blank = torch.zeros(1, 3, model.size, model.size, dtype=torch.uint8)
            windows = Windows.covering(model.size, model.encode(blank).of("spatial").shape[1], POSITIONS)
            pixels = views(windows.image_size)
            images = max(images, pixels, key=lambda each: each.shape[-1])
            heads = [teacher for teacher, kinds in setup.kinds.items() if "spatial" in kinds]
            heads = [teacher for teacher in heads if model.has_head(teacher, "spatial")]
            for head, features in _encoded(model, windows, torch.from_numpy(pixels), heads, setup.batch_size).items():
                maps[f"{name}/{head}" if head else name] = F.normalize(windows.joined(features), dim=-1)
        return cls(images, maps)


def _encoded(
    model: EvaluatedModel, windows: Windows, images: torch.Tensor, heads: Sequence[str], batch_size: int
) -> dict[str, torch.Tensor]:
    """Return the maps of all windows: the model's own by an empty name, its heads' by the names of the teachers."""
    parts: dict[str, list[torch.Tensor]] = {name: [] for name in ("", *heads)}
    with torch.inference_mode():
        for batch in windows.cut(images).split(batch_size):
            features = model.encode(batch)
            parts[""].append(features.of("spatial").float().cpu())
            for name in heads:
                assert model.heads is not None
                parts[name].append(model.heads.head(name, features).of("spatial").float().cpu())
    return {name: torch.cat(each) for name, each in parts.items()}
