"""Overlapping windows of an image, whose maps of features make one finer map."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Windows:
    """A grid of ``count`` x ``count`` square windows.

    A model that sees a larger image as a whole sees its contents at a size that it may never have learnt; in a window
    it sees what it always sees.

    Attributes:
        size: side of a window in pixels, the size of the model's input.
        side: positions along a side of the map of a window.
        step: positions from one window to the next.
    """

    size: int
    side: int
    step: int
    count: int

    @staticmethod
    def covering(size: int, side: int, positions: int) -> Windows:
        """Return the windows of a map with at least ``positions`` a side; a single one if its own map has so many."""
        step = max(1, side // 3)  # at the border of a window, padding changes features: all are seen near a centre, too
        return Windows(size, side, step, 1 + max(0, math.ceil((positions - side) / step)))

    @property
    def positions(self) -> int:
        """Positions along a side of the joined map."""
        return self.side + self.step * (self.count - 1)

    @property
    def image_size(self) -> int:
        """Side in pixels of the image that they cover."""
        return self._pixels(self.positions)

    def cut(self, images: Tensor) -> Tensor:
        """Return the windows of ``[N, 3, image_size, image_size]``, ``[N * count * count, 3, size, size]``."""
        starts = [self._pixels(self.step * i) for i in range(self.count)]
        rows = [images[:, :, top : top + self.size, left : left + self.size] for top in starts for left in starts]
        return torch.stack(rows, dim=1).flatten(0, 1)

    def joined(self, maps: Tensor) -> Tensor:
        """Return the mean ``[N, P, P, D]`` of overlapping maps ``[N * count * count, h, h, D]``, ``h`` a multiple of
        ``side``; a position counts the more, the farther it is from the border of its window."""
        finer, h, width = maps.shape[1] // self.side, maps.shape[1], maps.shape[-1]
        step, total = self.step * finer, self.positions * finer
        place = torch.arange(h, device=maps.device)
        near = torch.minimum(place + 1, h - place).to(maps.dtype)
        weight = (near[:, None] * near)[..., None]
        sums = maps.new_zeros(len(maps) // self.count**2, total, total, width)
        weights = maps.new_zeros(total, total, 1)
        for i, window in enumerate(maps.unflatten(0, (-1, self.count**2)).unbind(1)):
            top, left = step * (i // self.count), step * (i % self.count)
            sums[:, top : top + h, left : left + h] += window * weight
            weights[top : top + h, left : left + h] += weight
        return sums / weights

    def _pixels(self, positions: int) -> int:
        return round(positions * self.size / self.side)
