"""Whether a student says the same of an image at a low and at a high resolution.

A student that was taught by one teacher at low resolution and by another at high resolution may switch between them:
its features move as a whole when the input grows (Heinrich et al. 2024, "RADIOv2.5", section on mode switching). Two
figures tell, for each pair of resolutions, with maps brought to the coarser grid:

- agreement: mean cosine over positions after one mean feature, the student's own at its usual size, was taken from
  both sides. Features of another image score 0; detail that only the finer map has costs a little.
- shift: how far the mean feature moves from the one resolution to the other, over the features' own spread. A switch
  moves all features together; a loss of detail moves no mean.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from statistics import mean

from torch import Tensor

from radioplat.evaluation.metrics.fidelity import FidelityMeter
from radioplat.losses.base.reduce import to_grid

# Below FLOOR two maps have less in common than not; DROP below the other neighbours stands out of what a change of
# size costs this student anyhow; above SHIFT the mean has moved by more than the features differ from each other.
FLOOR, DROP, SHIFT = 0.5, 0.15, 1.0


@dataclass(frozen=True)
class Agreement:
    """One pair of resolutions.

    Attributes:
        low, high: pixels a side.
        agreement: mean centred cosine, in [-1, 1].
        plain: mean cosine of the raw features.
        shift: distance of the two mean features over the root mean square distance from their mean.
        flag: what looks like a switch, empty for nothing.
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
        center: ``[D]``, the mean feature to take away.
    """

    def __init__(self, sizes: list[int], center: Tensor) -> None:
        self._pairs = {pair: FidelityMeter(center) for pair in itertools.combinations(sorted(sizes), 2)}
        self._sums: dict[tuple[int, tuple[int, int]], tuple[Tensor, float]] = {}
        self._center = center.double()

    def update(self, maps: dict[int, Tensor]) -> None:
        """Add maps ``[B, h, w, D]`` of the same images by size."""
        for (low, high), meter in self._pairs.items():
            a, b = maps[low], maps[high]
            grid = (min(a.shape[1], b.shape[1]), min(a.shape[2], b.shape[2]))
            a, b = to_grid(a.float(), grid), to_grid(b.float(), grid)
            meter.update(a, b)
            for size, rows in ((low, a), (high, b)):
                rows = rows.detach().double().flatten(0, -2) - self._center.to(rows.device)
                total, square = self._sums.get((size, (low, high)), (0.0, 0.0))
                self._sums[size, (low, high)] = total + rows.sum(0), square + float(rows.square().sum())

    def result(self) -> list[Agreement]:
        """Every pair, neighbours first among those that begin at one size; flagged.

        Raises:
            RadioplatError: nothing was compared.
        """
        found = []
        for pair, meter in self._pairs.items():
            both = meter.result()
            found.append(Agreement(*pair, both.centered, both.plain, self._shift(pair, both.count)))
        return flagged(found)

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
    """The same pairs; those of neighbouring sizes between which the features switch say so."""
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
