"""The grid rule: a student's and a teacher's map on common positions, where both look at the image.

Where both models see the same part of the image, positions correspond by scale and both maps go to the coarser of the
two grids (:func:`radioplat.losses.base.reduce.to_grid`). Where their views lie elsewhere, the finer map is sampled at
the positions of the coarser one, by way of the homographies that map both views to the source image.

A position counts where every pixel that it covers shows the image. What stands at any other position, NaN included,
changes neither a value nor a gradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from radioplat.losses.base.reduce import to_grid

_LEAST = 1 / 64  # of a position: what is seen of it by less is not compared


@dataclass(frozen=True)
class Overlap:
    """How the student's view and a teacher's lie to each other, and what of each shows the image.

    Attributes:
        warp: float32 ``[B, 3, 3]``, the unit square of the student's view to that of the teacher's; None where both
            show the same part.
        student, teacher: bool ``[B, H, W]`` by pixel of the view, True where it shows the image; None: everywhere.
    """

    warp: torch.Tensor | None = None
    student: torch.Tensor | None = None
    teacher: torch.Tensor | None = None

    def to(self, device: torch.device) -> Overlap:
        """The same on ``device``."""
        moved = {name: value.to(device) for name, value in vars(self).items() if value is not None}
        return replace(self, **moved)


def on_common_grid(
    student: torch.Tensor, teacher: torch.Tensor, overlap: Overlap | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Both maps on the coarser grid, and which of its positions both see.

    Args:
        student, teacher: fp32 ``[B, h, w, D]``, each with its own ``h``, ``w`` and ``D``.
        overlap: None where the views are one and every pixel shows the image.

    Returns:
        Two maps ``[B, h', w', D]``, 0 where one of the models does not look, and fp32 ``[B, h', w']`` in [0, 1]: the
        share of a position that both see; None where that is 1 everywhere. A map that is averaged down has the mean
        over the part that is seen.
    """
    if overlap is None:
        grid = (min(student.shape[1], teacher.shape[1]), min(student.shape[2], teacher.shape[2]))
        return to_grid(student, grid), to_grid(teacher, grid), None
    mine, theirs = seen_positions(overlap.student, student), seen_positions(overlap.teacher, teacher)
    if overlap.warp is None:
        grid = (min(student.shape[1], teacher.shape[1]), min(student.shape[2], teacher.shape[2]))
        (a, seen_a), (b, seen_b) = _averaged(student, mine, grid), _averaged(teacher, theirs, grid)
    elif student.shape[1] * student.shape[2] <= teacher.shape[1] * teacher.shape[2]:
        (a, seen_a), (b, seen_b) = (student, mine), _sampled(teacher, theirs, overlap.warp, student.shape[1:3])
    else:
        back = torch.linalg.inv(overlap.warp)
        (a, seen_a), (b, seen_b) = _sampled(student, mine, back, teacher.shape[1:3]), (teacher, theirs)
    seen = seen_a * seen_b
    both = (seen > 0).unsqueeze(-1)
    return torch.where(both, a, 0.0), torch.where(both, b, 0.0), seen


def seen_positions(valid: torch.Tensor | None, spatial: torch.Tensor) -> torch.Tensor:
    """fp32 ``[B, h, w]``, 1 for each position of a map ``[B, h, w, D]`` all of whose pixels show the image, else 0.

    Args:
        valid: bool ``[B, H, W]`` by pixel of the view, or None for everywhere.
    """
    if valid is None:
        return torch.ones(spatial.shape[:3], device=spatial.device)
    hidden = (~valid).float().unsqueeze(1)
    return 1 - F.adaptive_max_pool2d(hidden, tuple(spatial.shape[1:3])).squeeze(1)


def _averaged(spatial: torch.Tensor, seen: torch.Tensor, grid: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean over what is seen of each position of ``grid``, and how much of it that is."""
    counts = seen.unsqueeze(-1)
    total, share = to_grid(torch.where(counts > 0, spatial, 0.0), grid), to_grid(counts, grid)
    return total / share.clamp(min=_LEAST), torch.where(share >= _LEAST, share, 0.0).squeeze(-1)


def _sampled(
    spatial: torch.Tensor, seen: torch.Tensor, warp: torch.Tensor, grid: tuple[int, int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """``spatial`` at the positions of ``grid`` in another view, and how much of each is seen.

    A position of ``grid`` is the mean over k x k points in it, k the ratio of the two grids rounded up, each read
    bilinearly: of a map k times as fine, whose positions lie in whole cells, that is the average.

    Args:
        warp: ``[B, 3, 3]``, unit square of the view of ``grid`` to the unit square of this one.
    """
    ratio = tuple(max(1, math.ceil(own / wanted)) for own, wanted in zip(spatial.shape[1:3], grid, strict=True))
    rows, columns = (
        (torch.arange(n * k, device=spatial.device, dtype=torch.float32) + 0.5) / (n * k)
        for n, k in zip(grid, ratio, strict=True)
    )
    y, x = torch.meshgrid(rows, columns, indexing="ij")
    points = torch.stack([x, y, torch.ones_like(x)], -1).flatten(0, 1) @ warp.transpose(1, 2)  # [B, points, 3]
    depth = points[..., 2:]
    place = (points[..., :2] / torch.where(depth > 0, depth, 1.0)).view(-1, *x.shape, 2)
    inside = ((place >= 0) & (place <= 1)).all(-1) & (depth > 0).view(-1, *x.shape)
    counts = seen.unsqueeze(-1)
    # The mask travels as one more channel: what is read beside a hidden position is made up of the others alone.
    values = torch.cat([torch.where(counts > 0, spatial, 0.0), counts], -1).permute(0, 3, 1, 2)
    read = F.grid_sample(values, 2 * place - 1, mode="bilinear", padding_mode="border", align_corners=False)
    found = F.avg_pool2d(read * inside.unsqueeze(1), ratio).permute(0, 2, 3, 1)
    share = found[..., -1:]
    return found[..., :-1] / share.clamp(min=_LEAST), torch.where(share >= _LEAST, share, 0.0).squeeze(-1)
