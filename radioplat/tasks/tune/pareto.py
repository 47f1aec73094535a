"""Which trials no other beats in everything, which of them is taken, and the picture."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence

from radioplat.tasks.tune.record import State, TrialRecord


def beats(a: Mapping[str, float], b: Mapping[str, float], modes: Mapping[str, str]) -> bool:
    """Whether ``a`` is nowhere worse than ``b`` and somewhere better; ``modes``: max or min by metric."""
    ours, theirs = ([_cost(m, modes[name], name) for name in modes] for m in (a, b))
    return all(x <= y for x, y in zip(ours, theirs, strict=True)) and ours != theirs


def front(trials: Sequence[TrialRecord], modes: Mapping[str, str]) -> list[TrialRecord]:
    """The done trials that no other beats, the best of the first metric first."""
    known = [
        record
        for record in trials
        if record.state is State.done and all(math.isfinite(record.metrics.get(name, math.nan)) for name in modes)
    ]
    best = [r for r in known if not any(beats(other.metrics, r.metrics, modes) for other in known)]
    return sorted(best, key=lambda r: [_cost(r.metrics, mode, name) for name, mode in modes.items()])


def choose(trials: Sequence[TrialRecord], modes: Mapping[str, str]) -> TrialRecord | None:
    """Of the front the trial nearest to the best of everything, each metric scaled to 0..1 over the front."""
    best = front(trials, modes)
    spans = {}
    for name, mode in modes.items():
        costs = [_cost(record.metrics, mode, name) for record in best]
        spans[name] = (min(costs), max(costs)) if costs else (0.0, 0.0)

    def distance(record: TrialRecord) -> float:
        parts = []
        for name, (low, high) in spans.items():
            parts.append((_cost(record.metrics, modes[name], name) - low) / (high - low) if high > low else 0.0)
        return math.hypot(*parts)

    return min(best, key=distance, default=None)


def draw(trials: Sequence[TrialRecord], modes: Mapping[str, str], chosen: TrialRecord | None) -> bytes:
    """A PNG: the first metric against each other one (against the number of the trial where there is no other)."""
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


def _cost(metrics: Mapping[str, float], mode: str, name: str) -> float:
    return metrics[name] if mode == "min" else -metrics[name]
