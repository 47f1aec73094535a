"""Relations between the samples of a micro-batch (RKD: Park et al. 2019, "Relational Knowledge Distillation").

``student`` is ``[B, D]``, ``teacher`` ``[B, E]``, ``weight`` ``[B]``; finite, fp32. Each function returns one value a
sample, ``[B]``, whose mean weighted by ``weight`` is the mean over all pairs, or triplets, of distinct samples; samples
of weight 0 are left out. A micro-batch is the same at any world size, so these values are too.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

_FLOOR = 1e-6


def rkd_distance(student: torch.Tensor, teacher: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Huber (delta 1) of the difference of pair distances, each over its mean distance (section 3.2.1, RKD-D)."""
    pairs = _pairs(weight)
    ours, theirs = (_distances(x, pairs) for x in (student, teacher))
    return _mean(F.smooth_l1_loss(ours, theirs, reduction="none"), pairs)


def rkd_angle(student: torch.Tensor, teacher: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Huber (delta 1) of the difference of cosines at a vertex, over all triplets (section 3.2.2, RKD-A).

    Memory is proportional to B^3.
    """
    edges = _pairs(weight)  # edges from the vertex; the vertex's own weight is in both edges and cancels
    triplets = edges[:, :, None] * edges[:, None, :]
    triplets = torch.where(torch.eye(len(weight), dtype=torch.bool, device=weight.device), 0.0, triplets)
    difference = F.smooth_l1_loss(_cosines(student), _cosines(teacher), reduction="none")
    return _mean(difference.flatten(1), triplets.flatten(1))


def _distances(x: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor:
    """Return distances ``[B, B]``, divided by their mean with the weights ``pairs``."""
    # by differences: the faster matrix product loses the gradient between near neighbours to rounding
    distance = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")
    mean = (distance * pairs).sum() / pairs.sum().clamp(min=_FLOOR)
    return distance / mean.clamp(min=_FLOOR)


def _cosines(x: torch.Tensor) -> torch.Tensor:
    """Return ``[j, i, k]``: the cosine at x_j between the directions to x_i and x_k."""
    edges = F.normalize(x[None] - x[:, None], dim=-1, eps=_FLOOR)
    return edges @ edges.transpose(1, 2)


def _pairs(weight: torch.Tensor) -> torch.Tensor:
    """Return ``[B, B]``: the product of two samples' weights, 0 on the diagonal."""
    return weight.outer(weight).fill_diagonal_(0)


def _mean(values: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Average over the last dimension, 0 without weight."""
    return (values * weights).sum(-1) / weights.sum(-1).clamp(min=_FLOOR)
