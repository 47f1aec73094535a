"""Features of some held-out images, for pictures."""

from __future__ import annotations

import numpy as np
import torch

from radioplat.evaluation.measure.neighbours import spread_over_classes
from radioplat.evaluation.metrics.encoded_batch import EncodedBatch
from radioplat.evaluation.metrics.metric import Setup

FEWEST_POSITIONS = 4  # a side; nobody recognises anything in a coarser map


class SampleMaps:
    """Maps of ``evaluate.pictures`` images of the first batch, of different classes if there are labels.

    Maps of fewer than :data:`FEWEST_POSITIONS` positions a side are left out.

    Attributes:
        images: uint8 ``[N, 3, S, S]``; empty before the first batch, and without pictures.
        maps: ``[N, h, w, D]`` by model; a student's in a teacher's space is ``<student>/<teacher>``.
        coarse: size of the map by model whose map is left out.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self.images = np.zeros((0, 3, 0, 0), np.uint8)
        self.maps: dict[str, torch.Tensor] = {}
        self.coarse: dict[str, str] = {}

    def update(self, batch: EncodedBatch) -> None:
        """Select images of the first batch."""
        if len(self.images) or not self._setup.spec.evaluate.pictures:
            return
        chosen = spread_over_classes(batch.labels.numpy(), self._setup.spec.evaluate.pictures)
        self.images = batch.pixels[max(batch.pixels)][chosen].numpy()
        for name, model in self._setup.models.items():
            maps = batch.features[name].of("spatial")[chosen].float().cpu()
            if min(maps.shape[1:3]) < FEWEST_POSITIONS:
                self.coarse[name] = " x ".join(map(str, maps.shape[1:3]))
                continue
            self.maps[name] = maps
            for teacher, kinds in self._setup.kinds.items():
                if "spatial" in kinds and model.has_head(teacher, "spatial"):
                    self.maps[f"{name}/{teacher}"] = batch.head(name, teacher).of("spatial")[chosen].float().cpu()
