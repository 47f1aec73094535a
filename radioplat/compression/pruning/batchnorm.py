"""BatchNorm's statistics after channels were removed: they are of sums with more terms, and are estimated again."""

from __future__ import annotations

import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.swa_utils import update_bn

from radioplat.models.student.student import Student


def reestimate_batchnorm(student: Student, images: torch.Tensor, batch: int) -> None:
    """Replace the running means and variances of BatchNorm by those of ``images`` (Li et al. 2020, EagleEye, 3.3).

    Args:
        images: uint8 ``[N, 3, H, W]``.
        batch: images that are normalised together.
    """
    update_bn(images.split(batch), student)
    student.eval()


def has_statistics(student: Student) -> bool:
    """Return whether the backbone has BatchNorm with running statistics."""
    return any(isinstance(m, _BatchNorm) and m.track_running_stats for m in student.backbone.modules())
