"""Agreement of a student's features of one image at a low and at a high resolution.

A student with one teacher at low resolution and another at high resolution may switch between them: its features move
together when the input grows (Heinrich et al. 2024, "RADIOv2.5", section on mode switching). Two figures show this
for each pair of resolutions, with maps resized to the coarser grid:

- agreement: mean cosine over positions without the mean feature of the student at its usual size. Features of another
  image score 0; detail that only the finer map has costs a little.
- shift: distance between the mean features at the two resolutions, over the features' deviation. A switch moves all
  features together; a loss of detail moves no mean.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from statistics import mean

from torch import Tensor

from radioplat.evaluation.metrics.encoded_batch import EncodedBatch
from radioplat.evaluation.metrics.fidelity import FidelityMeter, TeacherMean
from radioplat.evaluation.metrics.metric import Metric, Setup
from radioplat.losses.base.reduce import on_coarser_grid
from radioplat.tracking.table import Table

BACKBONE = "backbone"

# A switch is suspected if the agreement is below FLOOR, or lower by DROP than the mean of the other neighbouring pairs
# (the effect of a change of size on this student), or if the mean moves by more than SHIFT deviations of the features.
FLOOR, DROP, SHIFT = 0.5, 0.15, 1.0


@dataclass(frozen=True)
class Agreement:
    """Agreement at one pair of resolutions.

    Attributes:
        low, high: pixels a side.
        agreement: mean centred cosine, in [-1, 1].
        plain: mean cosine of the raw features.
        shift: distance of the two mean features, divided by the root mean square distance of features from their mean.
        flag: the reasons to suspect a switch; empty for none.
    """

    low: int
    high: int
    agreement: float
    plain: float
    shift: float
    flag: str = ""


class AgreementMeter:
    """Accumulates :class:`Agreement` over batches, for every pair of sizes.

    Args:
        sizes: in pixels.
        center: ``[D]``, the mean feature that is subtracted.
    """

    def __init__(self, sizes: list[int], center: Tensor) -> None:
        self._pairs = {pair: FidelityMeter(center) for pair in itertools.combinations(sorted(sizes), 2)}
        self._sums: dict[tuple[int, tuple[int, int]], tuple[Tensor, float]] = {}
        self._center = center.double()

    def update(self, maps: dict[int, Tensor]) -> None:
        """Add maps ``[B, h, w, D]`` of the same images by size."""
        for (low, high), meter in self._pairs.items():
            a, b = on_coarser_grid(maps[low].float(), maps[high].float())
            meter.update(a, b)
            for size, rows in ((low, a), (high, b)):
                rows = rows.detach().double().flatten(0, -2) - self._center.to(rows.device)
                total, square = self._sums.get((size, (low, high)), (0.0, 0.0))
                self._sums[size, (low, high)] = total + rows.sum(0), square + float(rows.square().sum())

    def result(self) -> list[Agreement]:
        """Return the agreement of every pair of sizes, ordered by size, with flags.

        Raises:
            RadioplatError: nothing was compared.
        """
        results = []
        for pair, meter in self._pairs.items():
            both = meter.result()
            results.append(Agreement(*pair, both.centered, both.plain, self._shift(pair, both.count)))
        return flagged(results)

    def _shift(self, pair: tuple[int, int], count: int) -> float:
        means, spreads = [], []
        for size in pair:
            total, square = self._sums[size, pair]
            means.append(total / count)
            spreads.append(max(0.0, square / count - float(means[-1].square().sum())))
        spread = math.sqrt(mean(spreads))
        moved = float((means[1] - means[0]).norm())
        return moved / spread if spread > 0 else 0.0 if moved == 0 else math.inf


def flagged(pairs: list[Agreement]) -> list[Agreement]:
    """Return the same pairs, with a flag on those of neighbouring sizes between which the features seem to switch."""
    sizes = sorted({size for pair in pairs for size in (pair.low, pair.high)})
    neighbours = set(itertools.pairwise(sizes))
    near = [p for p in pairs if (p.low, p.high) in neighbours]
    return [_with_flag(p, [q for q in near if q is not p]) if p in near else p for p in pairs]


def _with_flag(pair: Agreement, others: list[Agreement]) -> Agreement:
    reasons = []
    usual = mean(other.agreement for other in others) if others else None
    if pair.agreement < FLOOR:
        reasons.append(f"agreement below {FLOOR}")
    elif usual is not None and pair.agreement < usual - DROP:
        reasons.append(f"agreement {usual - pair.agreement:.2f} below that of the other neighbours")
    if pair.shift > SHIFT:
        reasons.append(f"the mean feature moves by {pair.shift:.1f} times the features' spread")
    return Agreement(pair.low, pair.high, pair.agreement, pair.plain, pair.shift, "; ".join(reasons))


class ResolutionAgreement(Metric):
    """:class:`Agreement` of the trained student's features, by ``backbone``, and by teacher's name for its heads."""

    name = "agreement"
    switch = "resolutions"

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        whole = {name: model for name, model in setup.models.items() if model.num_tokens is None}
        self._base = next((m.variant_of for m in whole.values() if m.variant_of is not None), None)
        keys = [BACKBONE, *(teacher for teacher, kinds in setup.kinds.items() if "spatial" in kinds)]
        self._means = {key: TeacherMean() for key in keys} if self._base is not None else {}
        self._names = {m.size: n for n, m in whole.items() if self._base in (n, m.variant_of)}
        self._meters: dict[str, AgreementMeter] = {}

    def learn(self, batch: EncodedBatch) -> None:
        """Add a batch of training images."""
        for key, center in self._means.items():
            center.update(batch.features[self._base or "" if key == BACKBONE else key].of("spatial"))

    def update(self, batch: EncodedBatch) -> None:
        """Add a batch of held-out images."""
        for key in self._means:
            own = {
                size: (batch.features[name] if key == BACKBONE else batch.head(name, key)).of("spatial")
                for size, name in self._names.items()
            }
            self._meter(key).update(own)

    def result(self) -> dict[str, list[Agreement]]:
        """Compute the agreement of the backbone's maps and of each head's maps."""
        return {key: self._meter(key).result() for key in self._means}

    @classmethod
    def tables(cls, result: dict[str, list[Agreement]]) -> list[Table]:
        """Return the result as tables of the report."""
        rows = [
            [
                name if name == BACKBONE else f"head for {name}",
                *(p.low, p.high, p.agreement, p.plain, p.shift),
                p.flag or "no switch seen",
            ]
            for name, pairs in result.items()
            for p in pairs
        ]
        note = (
            "Agreement: mean cosine of one image's maps at two resolutions, on the coarser grid, without the mean "
            "feature; another image's map scores 0. Shift: distance of the two mean features, in units of the "
            "features' spread. Neighbouring resolutions are judged."
        )
        columns = ["features", "lower px", "higher px", "agreement", "plain cosine", "shift of the mean", "finding"]
        return [Table(columns, rows, "Agreement of the student between resolutions", note)]

    @classmethod
    def figures(cls, result: dict[str, list[Agreement]]) -> dict[str, float]:
        """Return the figures for ``status.json``, by name."""
        return {f"agreement/{name}/{p.low}-{p.high}": p.agreement for name, pairs in result.items() for p in pairs}

    def _meter(self, key: str) -> AgreementMeter:
        if key not in self._meters:
            self._meters[key] = AgreementMeter(list(self._names), self._means[key].mean)
        return self._meters[key]
