"""Bring a student's and a teacher's map to a common grid, with a mask of the positions that both see.

If both models see the same part of the image, positions correspond by scale, and both maps are resized to the coarser
of the two grids (:func:`radioplat.losses.base.reduce.to_grid`). If their views differ, the finer map is sampled at the
positions of the coarser one, by the homographies that map both views to the source image.

A position is valid if every pixel that it covers shows the image. Values at any other position, NaN included, change
neither the loss nor a gradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from radioplat.losses.base.reduce import to_grid

_LEAST = 1 / 64  # minimum visible share of a position that is compared


@dataclass(frozen=True)
class Overlap:
    """Geometry between the student's view and a teacher's, and the pixels of each that show the image.

    Attributes:
        warp: float32 ``[B, 3, 3]``, the unit square of the student's view to that of the teacher's; None if both show
            the same part.
        student, teacher: bool ``[B, H, W]`` by pixel of the view, True if it shows the image; None: everywhere.
    """

    warp: torch.Tensor | None = None
    student: torch.Tensor | None = None
    teacher: torch.Tensor | None = None

    def to(self, device: torch.device) -> Overlap:
        """Copy to ``device``."""
        moved = {name: value.to(device) for name, value in vars(self).items() if value is not None}
        return replace(self, **moved)


def on_common_grid(
    student: torch.Tensor, teacher: torch.Tensor, overlap: Overlap | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Return both maps on the coarser of their grids, and the share of each position that both models see.

    Args:
        student, teacher: fp32 ``[B, h, w, D]``, each with its own ``h``, ``w`` and ``D``.
        overlap: None if the views are the same and every pixel shows the image.

    Returns:
        Two maps ``[B, h', w', D]``, 0 where one of the models sees nothing, and fp32 ``[B, h', w']`` in [0, 1]: the
        share of a position that both see; None if that is 1 everywhere. A map that is averaged down has the mean over
        the visible part.
    """
    if overlap is None:
        grid = (min(student.shape[1], teacher.shape[1]), min(student.shape[2], teacher.shape[2]))
        return to_grid(student, grid), to_grid(teacher, grid), None
    mine, theirs = visible_positions(overlap.student, student), visible_positions(overlap.teacher, teacher)
    if overlap.warp is None:
        grid = (min(student.shape[1], teacher.shape[1]), min(student.shape[2], teacher.shape[2]))
        (a, visible_a), (b, visible_b) = _averaged(student, mine, grid), _averaged(teacher, theirs, grid)
    elif student.shape[1] * student.shape[2] <= teacher.shape[1] * teacher.shape[2]:
        (a, visible_a), (b, visible_b) = (student, mine), _sampled(teacher, theirs, overlap.warp, student.shape[1:3])
    else:
        back = torch.linalg.inv(overlap.warp)
        (a, visible_a), (b, visible_b) = _sampled(student, mine, back, teacher.shape[1:3]), (teacher, theirs)
    visible = visible_a * visible_b
    both = (visible > 0).unsqueeze(-1)
    return torch.where(both, a, 0.0), torch.where(both, b, 0.0), visible


def visible_positions(valid: torch.Tensor | None, spatial: torch.Tensor) -> torch.Tensor:
    """Return fp32 ``[B, h, w]``: 1 for positions of a map ``[B, h, w, D]`` all of whose pixels show the image, else 0.

    Args:
        valid: bool ``[B, H, W]`` by pixel of the view, or None for everywhere.
    """
    if valid is None:
        return torch.ones(spatial.shape[:3], device=spatial.device)
    hidden = (~valid).float().unsqueeze(1)
    return 1 - F.adaptive_max_pool2d(hidden, tuple(spatial.shape[1:3])).squeeze(1)


def _averaged(spatial: torch.Tensor, visible: torch.Tensor, grid: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Average the visible part of each position of ``grid``; return it and its share of the position."""
    counts = visible.unsqueeze(-1)
    total, share = to_grid(torch.where(counts > 0, spatial, 0.0), grid), to_grid(counts, grid)
    return total / share.clamp(min=_LEAST), torch.where(share >= _LEAST, share, 0.0).squeeze(-1)


def _sampled(
    spatial: torch.Tensor, visible: torch.Tensor, warp: torch.Tensor, grid: tuple[int, int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample ``spatial`` at the positions of ``grid`` in another view; return it and the visible share of each
    position.

    A position of ``grid`` is the mean over k x k points in it, k the ratio of the two grids rounded up, each read
    bilinearly; for a map exactly k times as fine that equals the average.

    Args:
        warp: ``[B, 3, 3]``, unit square of the view of ``grid`` to the unit square of this one.
    """
    ratio = tuple(max(1, math.ceil(own / wanted)) for own, wanted in zip(spatial.shape[1:3], grid, strict=True))
    rows, columns = (
        (torch.arange(n * k, device=spatial.device, dtype=torch.float32) + 0.5) / (n * k)
        for n, k in zip(grid, ratio, strict=True)
    )
    y, x = torch.meshgrid(rows, columns, indexing="ij")
    # Sums of products, not a matrix product: TF32 would round coordinates to a thousandth of the view.
    ones = torch.stack([x, y, torch.ones_like(x)], -1).flatten(0, 1)
    points = (ones[None, :, None] * warp[:, None]).sum(-1)  # [B, points, 3]
    depth = points[..., 2:]
    place = (points[..., :2] / torch.where(depth > 0, depth, 1.0)).view(-1, *x.shape, 2)
    inside = ((place >= 0) & (place <= 1)).all(-1) & (depth > 0).view(-1, *x.shape)
    counts = visible.unsqueeze(-1)
    # The mask is sampled as one more channel, so that a value next to a hidden position is the mean of visible ones.
    values = torch.cat([torch.where(counts > 0, spatial, 0.0), counts], -1).permute(0, 3, 1, 2)
    read = F.grid_sample(values, 2 * place - 1, mode="bilinear", padding_mode="border", align_corners=False)
    sampled = F.avg_pool2d(read * inside.unsqueeze(1), ratio).permute(0, 2, 3, 1)
    share = sampled[..., -1:]
    return sampled[..., :-1] / share.clamp(min=_LEAST), torch.where(share >= _LEAST, share, 0.0).squeeze(-1)
