"""Is a model's kNN accuracy another one than the first model's? The difference on the same images, with its interval.

A bootstrap over the held-out images, paired: each draw has the answers of both models to the same images (Efron and
Tibshirani 1993, "An Introduction to the Bootstrap", chapter 13). Intervals of each model alone would be wider.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from radioplat.evaluation.metrics.metric import Metric
from radioplat.tracking.table import Table

DRAWS = 10_000


@dataclass(frozen=True)
class PairedResult:
    """A model's kNN accuracy minus the first model's, in [-1, 1].

    Attributes:
        low, high: the 2.5th and 97.5th percentile of the bootstrap.
        count: number of labelled held-out images.
    """

    difference: float
    low: float
    high: float
    count: int


class PairedKnn(Metric):
    """A :class:`PairedResult` for each listed model but the first, ``setup.reference``, from the answers of ``knn``."""

    name = "paired_knn"

    def result(self) -> dict[str, PairedResult]:
        """Compute the result of each model; none without labels, or for a single model."""
        if self.setup.reference is None or self.setup.reference not in self.setup.right:
            return {}
        listed = [name for name, model in self.setup.models.items() if model.heads is not None]
        right = {name: self.setup.right[name].numpy() for name in listed}
        first = right.pop(self.setup.reference)
        return {name: paired(first, answers) for name, answers in right.items()}

    @classmethod
    def tables(cls, result: dict[str, PairedResult]) -> list[Table]:
        """Return the result as tables of the report, in percentage points."""
        rows = [
            [name, f"{100 * r.difference:+.1f}", f"{100 * r.low:+.1f}", f"{100 * r.high:+.1f}"]
            for name, r in result.items()
        ]
        note = "Percentage points; from and to: the interval of 95 % of a bootstrap over the held-out images, paired."
        columns = ["model", "difference", "from", "to"]
        return [Table(columns, rows, title="kNN beside the first model", note=note)]


def paired(first: np.ndarray, second: np.ndarray, draws: int = DRAWS) -> PairedResult:
    """Compare two models' answers to the same images.

    Args:
        first, second: whether each answer is right, bool ``[M]``.
    """
    count = len(first)
    better, worse = int((second & ~first).sum()), int((first & ~second).sum())
    # Drawing images with replacement draws the numbers of those on which the models differ from this distribution.
    shares = [better / count, worse / count, 1 - (better + worse) / count]
    numbers = np.random.default_rng(0).multinomial(count, shares, size=draws)
    low, high = np.percentile((numbers[:, 0] - numbers[:, 1]) / count, [2.5, 97.5])
    return PairedResult((better - worse) / count, float(low), float(high), count)
