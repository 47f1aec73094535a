"""Curves of a run: read from ``status.json``, drawn as PNG."""

from __future__ import annotations

import io
import itertools
import os
from collections.abc import Mapping, Sequence

from radioplat.tracking.status import read_status

Curve = list[tuple[int, float]]
_COLOURS = ["#2563c9", "#d9622b", "#2a8f5b", "#8a4fbf", "#b8860b", "#c2375a", "#33858d", "#6b6b6b"]


def curves_from_status(path: str | os.PathLike[str]) -> dict[str, Curve]:
    """Return all metrics that were logged with a step, as ``{name: [(step, value), ...]}``, by ascending step.

    A resumed run logs some steps again: earlier values of these steps are dropped, so that a curve belongs to the final
    weights. A value that was not finite (null) is left out.
    """
    curves: dict[str, Curve] = {}
    for line in read_status(path):
        step, kpi = line.get("step"), line.get("kpi")
        if not isinstance(step, int) or not isinstance(kpi, dict):
            continue
        for name, value in kpi.items():
            if isinstance(value, bool) or not (value is None or isinstance(value, (int, float))):
                continue
            curve = curves.setdefault(name, [])
            while curve and curve[-1][0] >= step:
                curve.pop()
            if value is not None:
                curve.append((step, float(value)))
    return {name: curve for name, curve in curves.items() if curve}


def group_curves(curves: Mapping[str, Curve]) -> dict[str, dict[str, Curve]]:
    """Group curves into charts: one for each teacher (``loss/<teacher>/<term>``), other losses, and each other metric.

    Returns:
        ``{chart title: {line label: curve}}``, losses first.
    """
    teachers: dict[str, dict[str, Curve]] = {}
    total: dict[str, Curve] = {}
    other: dict[str, dict[str, Curve]] = {}
    for name, curve in curves.items():
        parts = name.split("/")
        if parts[0] == "loss" and len(parts) >= 3:
            teachers.setdefault(f"loss, teacher {parts[1]}", {})["/".join(parts[2:])] = curve
        elif parts[0] == "loss":
            total["/".join(parts[1:]) or "total"] = curve
        else:
            other[name] = {name: curve}
    return ({"loss": total} if total else {}) | teachers | other


def draw_curves(title: str, lines: Mapping[str, Curve], images_per_step: int = 0) -> bytes:
    """Draw a chart as PNG; a loss with many values is drawn with its running mean.

    Args:
        title: shown above the axes; a title that begins with ``loss`` marks a chart of losses.
        lines: curves by label; up to 8 colours, then they repeat.
        images_per_step: global batch size, for a second axis of images seen; 0 for none.
    """
    import numpy as np
    from matplotlib.figure import Figure  # not pyplot, which keeps global state

    figure = Figure(figsize=(5.6, 3.2), dpi=144, layout="constrained")
    axes = figure.add_subplot()
    is_loss = title.startswith("loss")  # only losses are smoothed and drawn on a logarithmic scale
    for i, (label, curve) in enumerate(lines.items()):
        colour = _COLOURS[i % len(_COLOURS)]
        steps, values = zip(*curve, strict=True)
        noisy = is_loss and len(curve) > 40
        marker = "o" if len(curve) == 1 else None
        axes.plot(
            steps,
            values,
            color=colour,
            alpha=0.3 if noisy else 1,
            lw=0.8 if noisy else 1.6,
            marker=marker,
            label=None if noisy else label,
        )
        if noisy:
            axes.plot(steps, running_mean(values, len(values) // 20), color=colour, lw=1.8, label=label)
    drawn = [value for curve in lines.values() for _, value in curve]
    if is_loss and min(drawn) > 0 and max(drawn) / min(drawn) > 50:
        axes.set_yscale("log")
    axes.set_title(title, fontsize=10, loc="left", color="#222222")
    axes.set_xlabel("step", fontsize=8, color="#555555")
    axes.tick_params(labelsize=8, colors="#555555")
    if images_per_step:
        upper = axes.secondary_xaxis(
            "top", functions=(lambda x: np.asarray(x) * images_per_step, lambda x: np.asarray(x) / images_per_step)
        )
        upper.set_xlabel("images seen", fontsize=8, color="#555555")
        upper.tick_params(labelsize=8, colors="#555555")
        upper.spines["top"].set_color("#bbbbbb")
    axes.grid(True, color="#e8e8e8", lw=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#bbbbbb")
    if len(lines) > 1:
        axes.legend(fontsize=8, frameon=False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def running_mean(values: Sequence[float], window: int) -> list[float]:
    """Return the mean of each value with up to ``window`` values on either side, fewer at the ends."""
    sums = [0.0, *itertools.accumulate(values)]
    spans = ((max(0, i - window), min(len(values), i + window + 1)) for i in range(len(values)))
    return [(sums[last] - sums[first]) / (last - first) for first, last in spans]
