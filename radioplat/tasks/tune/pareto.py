"""Pareto front of trials, the choice of one trial, and a picture."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence

import numpy as np

from radioplat.tasks.tune.trial_record import State, TrialRecord


def dominates(a: Mapping[str, float], b: Mapping[str, float], modes: Mapping[str, str]) -> bool:
    """Return whether ``a`` dominates ``b``: not worse in any metric, better in one; ``modes``: max or min by metric."""
    costs, others = (_costs(metrics, modes) for metrics in (a, b))
    return all(x <= y for x, y in zip(costs, others, strict=True)) and costs != others


def front(trials: Sequence[TrialRecord], modes: Mapping[str, str]) -> list[TrialRecord]:
    """Return the finished trials that no other dominates, the best by the first metric first."""
    finished = [
        record
        for record in trials
        if record.state is State.done and all(math.isfinite(record.metrics.get(name, math.nan)) for name in modes)
    ]
    best = [r for r in finished if not any(dominates(other.metrics, r.metrics, modes) for other in finished)]
    return sorted(best, key=lambda r: _costs(r.metrics, modes))


def choose(trials: Sequence[TrialRecord], modes: Mapping[str, str]) -> TrialRecord | None:
    """Return the trial of the front nearest to the best value of every metric, each scaled to 0..1 over the front."""
    best = front(trials, modes)
    if not best:
        return None
    costs = np.array([_costs(record.metrics, modes) for record in best])
    spans = np.ptp(costs, axis=0)
    scaled = (costs - costs.min(0)) / np.where(spans > 0, spans, 1)
    return best[int(np.linalg.norm(scaled, axis=1).argmin())]


def draw(trials: Sequence[TrialRecord], modes: Mapping[str, str], chosen: TrialRecord | None) -> bytes:
    """Return a PNG of the first metric over each other one, or over the trials' numbers if it is the only one."""
    from matplotlib.figure import Figure

    names = list(modes)
    others = names[1:] or [""]
    done = [record for record in trials if record.state is State.done and names[0] in record.metrics]
    best = front(trials, modes)
    figure = Figure(figsize=(5.5 * len(others), 4), layout="constrained")
    for i, other in enumerate(others):
        axes = figure.add_subplot(1, len(others), i + 1)

        def place(record: TrialRecord, other: str = other) -> tuple[float, float]:
            return (record.metrics.get(other, math.nan) if other else record.number, record.metrics[names[0]])

        for group, color in ((done, "0.7"), (best, "tab:blue")):
            axes.scatter([place(r)[0] for r in group], [place(r)[1] for r in group], s=36, color=color)
        if len(names) == 2:
            line = sorted(map(place, best))
            axes.step(*zip(*line, strict=True), where="post", lw=1, color="tab:blue") if line else None
        if chosen is not None:
            x, y = place(chosen)
            axes.scatter([x], [y], s=130, facecolors="none", edgecolors="tab:red", label="chosen")
            axes.legend(loc="best", fontsize=8)
        for record in done:
            axes.annotate(str(record.number), place(record), xytext=(4, 4), textcoords="offset points", fontsize=8)
        axes.set(xlabel=_label(other, modes) if other else "trial", ylabel=_label(names[0], modes))
        axes.grid(alpha=0.3)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()


def _label(name: str, modes: Mapping[str, str]) -> str:
    return f"{name} ({'higher' if modes[name] == 'max' else 'lower'} is better)"


def _costs(metrics: Mapping[str, float], modes: Mapping[str, str]) -> list[float]:
    """Return the metrics in the order of ``modes``, negated if higher is better."""
    return [metrics[name] if mode == "min" else -metrics[name] for name, mode in modes.items()]
