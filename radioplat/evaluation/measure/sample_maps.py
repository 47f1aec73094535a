"""Features of some held-out images, for pictures."""

from __future__ import annotations

import numpy as np
import torch

from radioplat.evaluation.metrics.encoded_batch import EncodedBatch
from radioplat.evaluation.metrics.metric import Setup


class SampleMaps:
    """Maps of ``evaluate.pictures`` images of the first batch, of different classes if there are labels.

    Attributes:
        images: uint8 ``[N, 3, S, S]``; empty before the first batch, and without pictures.
        maps: ``[N, h, w, D]`` by model; a student's in a teacher's space is ``<student>/<teacher>``.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self.images = np.zeros((0, 3, 0, 0), np.uint8)
        self.maps: dict[str, torch.Tensor] = {}

    def update(self, batch: EncodedBatch) -> None:
        """Select images of the first batch."""
        if len(self.images) or not self._setup.spec.evaluate.pictures:
            return
        labels = batch.labels.numpy()
        rows = np.unique(labels, return_index=True)[1] if (labels >= 0).all() else np.arange(len(labels))
        others = np.setdiff1d(np.arange(len(labels)), rows)
        chosen = np.sort(np.concatenate([rows, others])[: self._setup.spec.evaluate.pictures])
        self.images = batch.pixels[max(batch.pixels)][chosen].numpy()
        for name, model in self._setup.models.items():
            self.maps[name] = batch.features[name].of("spatial")[chosen].float().cpu()
            for teacher, kinds in self._setup.kinds.items():
                if "spatial" in kinds and model.has_head(teacher, "spatial"):
                    self.maps[f"{name}/{teacher}"] = batch.head(name, teacher).of("spatial")[chosen].float().cpu()
