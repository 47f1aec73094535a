"""Compute the geometry between two views of a batch, as :mod:`radioplat.losses.base.grid` needs it."""

from __future__ import annotations

import numpy as np
import torch

from radioplat.data.batch import View
from radioplat.losses.base.grid import Overlap, visible_positions

_ALIKE = 1e-4  # of a view's side; float32 homographies of two views that show the same differ by less than this


def overlap_of(student: View, teacher: View) -> Overlap | None:
    """Return the warp between two views of the same images and the views' masks; None if both show all of the same.

    Args:
        student, teacher: views of the same ``B`` images; their sizes may differ.
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
    """Return float64 ``[B, 3, 3]``: homographies from the unit square of the view to pixels of the source image."""
    height, width = view.pixels.shape[2:]
    return view.homography.astype(np.float64) * np.array([width, height, 1.0])


def shown_positions(view: View | None, shape: tuple[int, int, int]) -> torch.Tensor:
    """Return True for each position of a map of ``view`` all of whose pixels show the image: bool ``[B, h, w]``, CPU.

    Args:
        view: None if the image fills the view.
        shape: B, h and w.
    """
    valid = None if view is None or view.valid is None else torch.tensor(view.valid)
    return visible_positions(valid, torch.empty(*shape, 0)) > 0
