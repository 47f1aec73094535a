"""Draws the pictures of docs/explanation/: ``python docs/hooks/pictures.py``. PHI-S, partitions: the package's."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
import torch

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.patches import FancyBboxPatch  # noqa: E402

from radioplat.data.order.partitions import partition_of  # noqa: E402
from radioplat.losses.target_transforms.phi_s import phi_s  # noqa: E402
from radioplat.losses.target_transforms.whitening import zca  # noqa: E402

FOLDER = Path(__file__).parents[1] / "explanation"
BLUE, GREEN, ORANGE, GREY = "#cfe2f3", "#d9ead3", "#fce5cd", "#eeeeee"
STYLE = {"svg.hashsalt": "radioplat", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 10}


def canvas(width: float, height: float) -> Axes:
    """Axes without marks, in units of a tenth of an inch."""
    figure = plt.figure(figsize=(width / 10, height / 10))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(0, height))
    axes.axis("off")
    return axes


def box(axes: Axes, left: float, low: float, width: float, height: float, text: str, colour: str = BLUE) -> None:
    """A box with text."""
    axes.add_patch(FancyBboxPatch((left, low), width, height, "round,pad=0,rounding_size=0.7", fc=colour, ec="#444444"))
    axes.text(left + width / 2, low + height / 2, text, ha="center", va="center")


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], text: str = "") -> None:
    """An arrow, with text above its middle."""
    axes.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": "#444444"})
    if text:
        axes.text((start[0] + end[0]) / 2, (start[1] + end[1]) / 2 + 0.6, text, ha="center", va="bottom", fontsize=8)


def save(axes: Axes, name: str) -> None:
    """Write the picture; the same code writes the same bytes."""
    axes.figure.savefig(FOLDER / f"{name}.svg", metadata={"Date": None}, facecolor="white")
    plt.close(axes.figure)


def data_flow() -> None:
    """From shards to an update."""
    axes = canvas(86, 27)
    box(axes, 1, 14, 12, 8, "shards:\nimages in tar\nfiles", GREY)
    box(axes, 19, 14, 12, 8, "index:\none row\nan image", GREY)
    box(axes, 37, 14, 12, 8, "order:\nwhich sample\nis the n-th", GREY)
    box(axes, 55, 14, 12, 8, "micro-batch:\ndecoded once,\nviews cut")
    box(axes, 73, 18, 12, 7, "teachers\n(frozen)", ORANGE)
    box(axes, 73, 9, 12, 7, "student", GREEN)
    box(axes, 55, 1, 12, 7, "losses", GREEN)
    box(axes, 37, 1, 12, 7, "step: sums\nover workers", GREEN)
    for left in (13, 31, 49):
        arrow(axes, (left, 18), (left + 6, 18))
    arrow(axes, (67, 20), (73, 21.5))
    arrow(axes, (67, 16), (73, 13.5))
    arrow(axes, (73.5, 18), (66, 8))
    arrow(axes, (76, 9), (67, 4))
    arrow(axes, (55, 4.5), (49, 4.5))
    axes.text(1, 4.5, "the same spec, shards and seed give the\nsame order on any number of workers", va="center")
    save(axes, "data_flow")


def placement() -> None:
    """Two ways to place teachers and student on eight GPUs."""
    axes = canvas(86, 30)
    axes.text(1, 28, "placement: inline — each GPU has a worker and all teachers", va="center")
    for gpu in range(8):
        left = 1 + 10.6 * gpu
        box(axes, left, 17, 9.6, 9, "", GREY)
        box(axes, left + 0.8, 21.7, 8, 3.4, "student", GREEN)
        box(axes, left + 0.8, 17.8, 8, 3.4, "3 teachers", ORANGE)
        axes.text(left + 4.8, 16, f"GPU {gpu}", ha="center", va="center", fontsize=8)
    axes.text(
        1, 13, "placement: spread — workers on four GPUs, teachers as actors on shares of the others", va="center"
    )
    shares = [["clip", "clip"], ["siglip", "dino_v2"], ["dino_v2", "dino_v2"], ["dino_v2", "dino_v2"]]
    for gpu in range(8):
        left = 1 + 10.6 * gpu
        box(axes, left, 2, 9.6, 9, "", GREY)
        if gpu < 4:
            box(axes, left + 0.8, 3, 8, 7, "student", GREEN)
        else:
            box(axes, left + 0.8, 6.7, 8, 3.4, shares[gpu - 4][0], ORANGE)
            box(axes, left + 0.8, 2.8, 8, 3.4, shares[gpu - 4][1], ORANGE)
        axes.text(left + 4.8, 1, f"GPU {gpu}", ha="center", va="center", fontsize=8)
    save(axes, "placement")


def partitions() -> None:
    """The micro-batches of four steps, and the teacher that each goes to."""
    axes = canvas(86, 24)
    colours, names = (BLUE, ORANGE), ("clip, sam", "dino")
    for step in range(4):
        low = 19 - 5 * step
        axes.text(1, low + 1.8, f"step {step}", va="center")
        for place, partition in enumerate(partition_of(1234, step, [4, 4])):
            box(axes, 9 + 9.6 * place, low, 9, 3.6, names[partition], colours[partition])
    axes.text(9, 1.5, "each box is a micro-batch: half of every global batch goes to each partition", va="center")
    save(axes, "partitions")


def preemption() -> None:
    """Time from a notice of preemption to the next step."""
    axes = canvas(86, 21)
    spans = [(9, 24, "steps", GREEN), (24, 29, "save", ORANGE), (29, 44, "restart on the\nremaining nodes", GREY)]
    for row, (name, last) in enumerate((("node A", 84), ("node B", 32))):
        low = 12 - 7 * row
        axes.text(1, low + 2.5, name, va="center")
        for start, end, text, colour in spans[: 3 - row]:
            box(axes, start, low, end - start, 5, text, colour)
        if row == 0:
            box(axes, 44, low, last - 44, 5, "steps, from the checkpoint just saved: none is repeated", GREEN)
        else:
            box(axes, 29, low, 9, 5, "ends", GREY)
    axes.plot([20, 20], [3, 19], color="#cc0000", lw=1)
    axes.text(20, 19.8, "notice: node B will end", color="#cc0000", ha="center", va="center")
    axes.text(9, 1.5, "time →", va="center")
    save(axes, "preemption")


def phi_s_picture() -> None:
    """Features of two dimensions before a transform, after PHI-S, and after whitening."""
    random = np.random.default_rng(0)
    points = random.multivariate_normal([0, 0], [[9.0, 1.2], [1.2, 0.5]], 150)
    covariance = torch.from_numpy(np.cov(points.T))
    panels = {"features of a teacher": np.eye(2), "after PHI-S": phi_s(covariance).forward.numpy()}
    panels["after whitening (zca)"] = zca(covariance).forward.numpy()
    figure, axes = plt.subplots(1, 3, figsize=(8.6, 3.1), constrained_layout=True)
    for each, (title, matrix) in zip(axes, panels.items(), strict=True):
        moved = points @ matrix.T
        each.scatter(*moved.T, s=5, color="#3d6fa5")
        each.set(xlim=(-9, 9), ylim=(-9, 9), aspect="equal", title=title)
        first, second = moved.var(axis=0)
        each.set_xlabel(f"variances {first:.2f} and {second:.2f}")
    save(axes[0], "phi_s")


def main() -> None:
    """Draw all."""
    with plt.rc_context(STYLE):
        for draw in (data_flow, placement, partitions, preemption, phi_s_picture):
            draw()


if __name__ == "__main__":
    main()
