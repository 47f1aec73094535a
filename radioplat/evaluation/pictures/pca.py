"""Pictures of spatial features: their three principal components as red, green and blue."""

from __future__ import annotations

import io
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

# Maximum number of rows to fit a basis on; more would hardly change three components, at quadratic cost.
_FIT_ROWS = 4096
_ROBUST = (0.01, 0.99)
_LETTERS = 9  # of a column's title, to an inch


@dataclass(frozen=True)
class PcaBasis:
    """Three principal axes of a feature space, and the range of values that is mapped to 0..255.

    Attributes:
        mean: float32 ``[D]``.
        axes: float32 ``[D, 3]``, orthonormal by descending variance, each with its largest component positive; zero
            columns if the features have fewer than three directions.
        low, high: float32 ``[3]``, the 1st and 99th percentile along each axis.
    """

    mean: Tensor
    axes: Tensor
    low: Tensor
    high: Tensor

    @staticmethod
    def fit(maps: Tensor) -> PcaBasis:
        """Fit on features ``[..., D]`` of all images that will be shown.

        The signs are canonical, so that equal features give equal colours on every machine.
        """
        rows = _float_rows(maps)
        rows = rows[:: math.ceil(len(rows) / _FIT_ROWS)]
        mean = rows.mean(dim=0)
        _, spread, axes = torch.linalg.svd(rows - mean, full_matrices=False)
        kept = int((spread[:3] > 1e-6 * max(float(spread[0]), float(mean.norm()), 1e-30)).sum())
        basis = rows.new_zeros(rows.shape[1], 3)
        basis[:, :kept] = axes[:kept].T
        largest = basis.abs().argmax(dim=0)
        basis = basis * torch.where(basis.gather(0, largest[None]) < 0, -1.0, 1.0)
        return PcaBasis(mean, basis, *_span((rows - mean) @ basis))

    def stretched(self, maps: Tensor) -> PcaBasis:
        """Return the same axes with the range of ``maps``: a head's output early in training has little contrast."""
        rows = _float_rows(maps)
        rows = rows[:: math.ceil(len(rows) / _FIT_ROWS)]
        return PcaBasis(self.mean, self.axes, *_span((rows - self.mean) @ self.axes))

    def colours(self, maps: Tensor) -> np.ndarray:
        """Convert features ``[..., D]`` to colours uint8 ``[..., 3]``; a constant component is mid-grey."""
        along = (_float_rows(maps) - self.mean) @ self.axes
        span = self.high - self.low
        unit = torch.where(span > 0, (along - self.low) / span.clamp_min(1e-30), 0.5).clamp(0, 1)
        return (unit * 255).round().to(torch.uint8).reshape(*maps.shape[:-1], 3).numpy()


def pca_panel(
    images: np.ndarray | Tensor,
    maps: Mapping[str, Tensor],
    same_space: Mapping[str, str] | None = None,
    stretch: bool = True,
) -> bytes:
    """Return a PNG of images and the features of several models: one row per image, one column per model.

    A student's head outputs features of its teacher's space: with ``same_space`` they are drawn along the teacher's
    axes, each column scaled to its own range of values, so that equal colours mean equal features up to contrast.

    Args:
        images: uint8 ``[N, 3, H, W]``.
        maps: ``[N, h, w, D]`` by column title, in the order of the columns.
        same_space: column title to the title of the column whose axes it uses, e.g. ``{"student as clip": "clip"}``.
        stretch: scale each such column to its own range of values; if false, a uniform offset of a column is visible.

    Returns:
        A PNG.

    Raises:
        ValueError: a column has another number of images, or uses the axes of a column of another width.
    """
    pixels = np.asarray(images).transpose(0, 2, 3, 1)
    return panel({"image": pixels} | _columns(maps, same_space or {}, len(pixels), stretch))


def panel(columns: Mapping[str, np.ndarray], photographs: Collection[str] = ("image",), cell: float = 1.75) -> bytes:
    """Return pictures side by side as a PNG: one row per image, a title above each column.

    Args:
        columns: uint8 ``[N, h, w, 3]`` by title. All cells have the height of the first column's.
        photographs: titles of columns that keep their proportions; others are maps, which are interpolated to the first
            column's shape.
        cell: width of the first column in inches.
    """
    from matplotlib.figure import Figure  # not pyplot, which keeps global state

    pixels = next(iter(columns.values()))
    gap, head = 0.06, 0.46
    tall = cell * pixels.shape[1] / pixels.shape[2]
    widths = [tall * p.shape[2] / p.shape[1] if title in photographs else cell for title, p in columns.items()]
    width = sum(widths) + gap * (len(columns) + 1)
    height = len(pixels) * (tall + gap) + head
    figure = Figure(figsize=(width, height), dpi=128, facecolor="white")
    for c, (title, pictures) in enumerate(columns.items()):
        left, wide = (sum(widths[:c]) + gap * (c + 1)) / width, widths[c] / width
        for r, picture in enumerate(pictures):
            bottom = 1 - (head + (r + 1) * tall + r * gap) / height
            axes = figure.add_axes((left, bottom, wide, tall / height))
            axes.imshow(picture, interpolation="antialiased" if title in photographs else "bicubic", aspect="auto")
            axes.set_axis_off()
        figure.text(
            left + wide / 2,
            1 - head / 2 / height,
            _wrapped(title, max(8, int(widths[c] * _LETTERS))),
            ha="center",
            va="center",
            fontsize=13,  # still readable where a page shows the picture at a third of its size
            color="#222222",
            linespacing=1.15,
        )
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _columns(
    maps: Mapping[str, Tensor], same_space: Mapping[str, str], count: int, stretch: bool
) -> dict[str, np.ndarray]:
    bases: dict[str, PcaBasis] = {}
    coloured = {}
    for title, features in maps.items():
        owner = same_space.get(title, title)
        if len(features) != count or features.ndim != 4:
            raise ValueError(f"column {title!r}: [{count}, H, W, D] expected, not {list(features.shape)}")
        if features.shape[-1] != maps[owner].shape[-1]:
            raise ValueError(f"columns {title!r} and {owner!r} differ in width, so they cannot share a space")
        if owner not in bases:
            bases[owner] = PcaBasis.fit(maps[owner])
        basis = bases[owner] if owner == title or not stretch else bases[owner].stretched(features)
        coloured[title] = basis.colours(features)
    return coloured


def _span(along: Tensor) -> tuple[Tensor, Tensor]:
    low, high = torch.quantile(along, along.new_tensor(_ROBUST), dim=0)
    return low, high


def _float_rows(maps: Tensor) -> Tensor:
    """Return ``[..., D]`` as float32 ``[R, D]`` on the CPU; values that are not finite become 0, a uniform area."""
    return maps.detach().to("cpu", torch.float32).flatten(0, -2).nan_to_num(0.0, 0.0, 0.0)


def _wrapped(title: str, width: int) -> str:
    """Break a column title that is longer than ``width`` letters into two lines, at a space if there is one."""
    if len(title) <= width:
        return title
    at = title.rfind(" ", 0, width)
    first, rest = (title[:at], title[at + 1 :]) if at > 0 else (title[:width], title[width:])
    return f"{first}\n{rest if len(rest) <= width else rest[: width - 1] + chr(0x2026)}"
