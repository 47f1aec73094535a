"""How much several models say the same as one of them: whether compression moved the features."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from radioplat.evaluation.metrics.fidelity import FidelityMeter, FidelityResult, TeacherMean
from radioplat.losses.base.reduce import to_grid
from radioplat.models.features import KINDS, Features


class Likeness:
    """Mean cosine of backbone features to those of ``reference``, after its own training mean was taken from both.

    Features of another image score 0. A model whose features have another width has none.

    Args:
        others: models that are compared.
    """

    def __init__(self, reference: str, others: Iterable[str]) -> None:
        self._reference, self._others = reference, list(others)
        self._means = {kind: TeacherMean() for kind in KINDS}
        self._meters: dict[tuple[str, str], FidelityMeter] = {}

    def learn(self, features: dict[str, Features], alive: Tensor) -> None:
        """Add training images to the mean.

        Args:
            alive: bool ``[B]``, the images that could be read.
        """
        for kind, mean in self._means.items():
            mean.update(_of(features[self._reference], kind)[alive])

    def see(self, features: dict[str, Features], alive: Tensor) -> None:
        """Compare held-out images; maps on the coarser of the two grids."""
        for name in self._others:
            for kind, mean in self._means.items():
                ours, first = _of(features[name], kind), _of(features[self._reference], kind)
                if ours.shape[-1] != first.shape[-1]:
                    continue
                if kind == "spatial":
                    grid = (min(ours.shape[1], first.shape[1]), min(ours.shape[2], first.shape[2]))
                    ours, first = to_grid(ours, grid), to_grid(first, grid)
                meter = self._meters.setdefault((name, kind), FidelityMeter(mean.mean))
                meter.update(ours[alive], first[alive])

    def result(self) -> dict[str, dict[str, FidelityResult]]:
        """By model and kind."""
        found: dict[str, dict[str, FidelityResult]] = {}
        for (name, kind), meter in self._meters.items():
            found.setdefault(name, {})[kind] = meter.result()
        return found


def _of(features: Features, kind: str) -> Tensor:
    value = features.summary if kind == "summary" else features.spatial
    assert value is not None
    return value
