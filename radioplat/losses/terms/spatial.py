"""Losses of complete maps: one value per sample.

``student`` is ``[B, h, w, D]``, ``teacher`` ``[B, h, w, E]``; finite, fp32. ``valid`` is ``[B, h, w]`` in [0, 1] or
None; positions of 0 are ignored. Each function returns ``[B]``.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

GRAM_POSITIONS = 1024  # all pairs of more positions would need too much memory
CHANNEL_TEMPERATURE = 4.0
_FLOOR = 1e-8


def gram(student: torch.Tensor, teacher: torch.Tensor, valid: torch.Tensor | None = None) -> torch.Tensor:
    """Mean squared difference of the cosines between all pairs of positions of an image.

    The Gram loss of DINOv3 (Simeoni et al. 2025, section 4.2), averaged instead of summed. Of maps with more than
    :data:`GRAM_POSITIONS` positions that many are used, evenly spaced.
    """
    student, teacher = student.flatten(1, 2), teacher.flatten(1, 2)
    valid = student.new_ones(student.shape[:2]) if valid is None else valid.flatten(1)
    if student.shape[1] > GRAM_POSITIONS:
        taken = torch.linspace(0, student.shape[1] - 1, GRAM_POSITIONS, device=student.device).round().long()
        student, teacher, valid = student[:, taken], teacher[:, taken], valid[:, taken]
    ours, theirs = (F.normalize(x, dim=-1, eps=1e-6) for x in (student, teacher))
    difference = (ours @ ours.transpose(1, 2) - theirs @ theirs.transpose(1, 2)).square()
    pairs = valid[:, :, None] * valid[:, None, :]
    return (difference * pairs).flatten(1).sum(1) / pairs.flatten(1).sum(1).clamp(min=_FLOOR)


def channel_kl(student: torch.Tensor, teacher: torch.Tensor, valid: torch.Tensor | None = None) -> torch.Tensor:
    """T^2 KL between the distributions of each channel over positions, mean over channels (Shu et al. 2021, equation
    4).

    Each channel's softmax runs over the positions, with T of :data:`CHANNEL_TEMPERATURE`. Widths must be equal.
    """
    ours, theirs = (x.flatten(1, 2) / CHANNEL_TEMPERATURE for x in (student, teacher))
    if valid is not None:
        hidden = (valid.flatten(1) <= 0)[:, :, None]
        ours, theirs = (x.masked_fill(hidden, -1e4) for x in (ours, theirs))  # finite: -inf - -inf is NaN
    divergence = F.kl_div(ours.log_softmax(1), theirs.log_softmax(1), reduction="none", log_target=True)
    return CHANNEL_TEMPERATURE**2 * divergence.sum(1).mean(-1)


def attention(student: torch.Tensor, teacher: torch.Tensor, valid: torch.Tensor | None = None) -> torch.Tensor:
    """Squared distance of the two attention maps, each of norm 1 (Zagoruyko & Komodakis 2017, equation 2).

    An attention map is the sum of squares over channels, F_sum^2. Squared, unlike the paper's norm, which has no
    gradient where the maps are equal; between 0 and 2.
    """
    ours, theirs = (_energy(x, valid) for x in (student, teacher))
    return (ours - theirs).square().sum(1)


def _energy(x: torch.Tensor, valid: torch.Tensor | None) -> torch.Tensor:
    energy = x.square().sum(-1)
    energy = energy if valid is None else energy * valid
    return F.normalize(energy.flatten(1), dim=1)
