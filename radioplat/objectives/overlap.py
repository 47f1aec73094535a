"""From the views of a batch to what the grid rule needs to know of them."""

from __future__ import annotations

import numpy as np
import torch

from radioplat.data.batch import View
from radioplat.losses.base.grid import Overlap, visible_positions

_ALIKE = 1e-4  # of a view's side: homographies are float32, and differ by less where two views show the same


def overlap_of(student: View, teacher: View) -> Overlap | None:
    """The warp between two views of the same images and their masks; None if both show the same, all of it.

    Args:
        student, teacher: of the images ``[B]``, of any size each.
    """
    warp = None
    if student.homography is not teacher.homography:
        relative = np.linalg.inv(_from_unit_square(teacher)) @ _from_unit_square(student)
        relative /= relative[:, 2:, 2:]
        if np.abs(relative - np.eye(3)).max(initial=0) > _ALIKE:
            warp = torch.tensor(relative, dtype=torch.float32)
    masks = [None if v.valid is None or v.valid.all() else torch.tensor(v.valid) for v in (student, teacher)]
    return None if warp is None and masks == [None, None] else Overlap(warp, *masks)


def _from_unit_square(view: View) -> np.ndarray:
    """float64 ``[B, 3, 3]``: to source pixels, whatever the view's size."""
    height, width = view.pixels.shape[2:]
    return view.homography.astype(np.float64) * np.array([width, height, 1.0])


def shown_positions(view: View | None, shape: tuple[int, int, int]) -> torch.Tensor:
    """bool ``[B, h, w]`` on the CPU: which positions of a map of ``view`` show the image by all of their pixels.

    Args:
        view: None shows it everywhere.
        shape: B, h and w.
    """
    valid = None if view is None or view.valid is None else torch.tensor(view.valid)
    return visible_positions(valid, torch.empty(*shape, 0)) > 0
