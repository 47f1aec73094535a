"""Accuracy of a student's own classifier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from radioplat.common.ranks import Ranks
from radioplat.evaluation.metrics.encoded_batch import EncodedBatch
from radioplat.evaluation.metrics.metric import Setup, SharedMetric, percentage
from radioplat.tracking.table import Table

_STUDENT = "student"  # the model of a single checkpoint


@dataclass(frozen=True)
class AccuracyResult:
    """Shares of the labelled images whose class has the highest score, or one of the five highest; in [0, 1]."""

    top1: float
    top5: float


class Accuracy(SharedMetric):
    """Metric ``accuracy``: an :class:`AccuracyResult` for each model that has a classifier."""

    name = row = "accuracy"
    score = "top1"
    column = "top-1, %"
    objective = "top1"
    requires = "a classifier of the student"

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        # By model, float64 [1 + k]: labelled images, and those whose class has the k-th highest score.
        self._counts: dict[str, torch.Tensor] = {}

    def update(self, batch: EncodedBatch) -> None:
        """Add a batch of held-out images."""
        for name in self.setup.at_usual_size:
            logits = batch.features[name].named.get("logits")
            if logits is not None:
                best = logits.topk(min(5, logits.shape[-1])).indices.cpu()
                right = (best == batch.labels[:, None])[batch.labels >= 0].double()
                counts = torch.cat([right.new_tensor([len(right)]), right.sum(0)])
                self._counts[name] = self._counts.get(name, torch.zeros_like(counts)) + counts

    def share(self, ranks: Ranks) -> None:
        """Add up the counts of all ranks."""
        of_all = ranks.objects(self._counts)
        names = dict.fromkeys(name for counts in of_all for name in counts)
        self._counts = {
            name: torch.stack([counts[name] for counts in of_all if name in counts]).sum(0) for name in names
        }

    def result(self) -> dict[str, AccuracyResult]:
        """Compute the result of each model."""
        return {
            name: AccuracyResult(float(counts[1] / counts[0]), float(counts[1:].sum() / counts[0]))
            for name, counts in self._counts.items()
            if counts[0]
        }

    @classmethod
    def tables(cls, result: dict[str, AccuracyResult]) -> list[Table]:
        """Return the result as rows of the kNN table of the report."""
        rows = [[f"{name}, its own classifier", percentage(r.top1), percentage(r.top5)] for name, r in result.items()]
        return [Table(["model", "top-1", "top-5"], rows, title="kNN on held-out images")]

    @classmethod
    def figures(cls, result: dict[str, AccuracyResult]) -> dict[str, float]:
        """Return the figures for ``status.json``, by name."""
        student = result.get(_STUDENT)
        return {"accuracy": student.top1, "accuracy/top5": student.top5} if student else {}

    @classmethod
    def as_json(cls, result: dict[str, AccuracyResult]) -> dict[str, Any]:
        """Return the result for ``results.json``, by key."""
        student = result.get(_STUDENT)
        return {"accuracy": student and student.top1, "accuracy_top5": student and student.top5}
