"""Similarity of the backbone features of several models to those of one of them, such as the uncompressed student."""

from __future__ import annotations

from collections.abc import Sequence

from radioplat.common import collectives
from radioplat.common.ranks import Ranks
from radioplat.evaluation.metrics.encoded_batch import EncodedBatch
from radioplat.evaluation.metrics.fidelity import FidelityMeter, FidelityResult, TeacherMean
from radioplat.evaluation.metrics.metric import Column, ModelRow, Setup, SharedMetric
from radioplat.losses.base.reduce import on_coarser_grid
from radioplat.models.features import KINDS


class FeatureSimilarity(SharedMetric):
    """Mean cosine of backbone features to those of ``setup.reference``, by model and kind.

    The reference's own training mean is subtracted from both sides first, so that features of unrelated images score
    0. A model whose features have another width has no result.
    """

    name = "feature_similarity"
    row = "likeness"

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._means = {kind: TeacherMean() for kind in KINDS} if setup.reference is not None else {}
        self._meters: dict[tuple[str, str], FidelityMeter] = {}

    def learn(self, batch: EncodedBatch) -> None:
        """Add a batch of training images."""
        for kind, mean in self._means.items():
            mean.update(batch.features[self.setup.reference or ""].of(kind))

    def update(self, batch: EncodedBatch) -> None:
        """Add a batch of held-out images; maps are compared on the coarser of the two grids."""
        reference = self.setup.reference
        others = [n for n, model in self.setup.models.items() if model.heads is not None and n != reference]
        for kind in self._means:
            first = batch.features[reference or ""].of(kind)
            for name in others:
                if (ours := batch.features[name].of(kind)).shape[-1] == first.shape[-1]:
                    self._meter(name, kind).update(*on_coarser_grid(ours, first))

    def share_learned(self, ranks: Ranks) -> None:
        """Join the means of all ranks."""
        for mean in self._means.values():
            mean.share(ranks)

    def share(self, ranks: Ranks) -> None:
        """Join the sums of all ranks, some of which may have had no image."""
        compared = dict.fromkeys(key for keys in ranks.objects(list(self._meters)) for key in keys)
        with collectives.mark_agreed():
            for key in compared:
                self._meter(*key).share(ranks)

    def result(self) -> dict[str, dict[str, FidelityResult]]:
        """Compute the result of each model."""
        results: dict[str, dict[str, FidelityResult]] = {}
        for (name, kind), meter in self._meters.items():
            results.setdefault(name, {})[kind] = meter.result()
        return results

    def _meter(self, name: str, kind: str) -> FidelityMeter:
        if (name, kind) not in self._meters:
            self._meters[name, kind] = FidelityMeter(self._means[kind].mean)
        return self._meters[name, kind]

    @classmethod
    def as_json(cls, result: object) -> dict[str, object]:
        """Return nothing: the result is part of the rows of models."""
        return {}

    @classmethod
    def of_model(cls, result: dict[str, dict[str, FidelityResult]], model: str) -> dict[str, float]:
        """Return the figures of one model for its row, by kind of feature."""
        return {kind: value.centered for kind, value in result.get(model, {}).items()}

    @classmethod
    def columns(cls, rows: Sequence[ModelRow]) -> dict[str, Column]:
        """Return a column of the table of models side by side for each kind of feature."""
        return {f"similar {kind}": Column(f"{cls.row}/{kind}") for kind in KINDS}
