"""Canonical eigenvectors of a covariance: independent of signs, ties and the order of the data.

The sign of an eigenvector is arbitrary; eigenvectors of equal eigenvalues are arbitrary up to a rotation; and those of
nearly equal eigenvalues are, because of rounding, also nearly arbitrary. Here a fixed rule makes each choice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

_ALIKE = 1e-6  # eigenvalues closer than this, relative to themselves, span one space
# The same relative to the largest: in float64 a vector has an error of about 1e-15 times the largest over the gap.
_NOISE = 1e-9
_TIE = 1e-6


@dataclass(frozen=True)
class EigenBasis:
    """Canonical eigenvectors, float64.

    Attributes:
        values: eigenvalues ``[D]``, descending, not below 0.
        vectors: orthonormal columns ``[D, D]``.
        groups: consecutive columns whose eigenvalues nearly coincide; the vectors of a group span its space, and
            diagonalize the covariance only up to the group's spread.
    """

    values: torch.Tensor
    vectors: torch.Tensor
    groups: tuple[slice, ...]


def eigenbasis(covariance: torch.Tensor) -> EigenBasis:
    """Compute canonical eigenvectors of a symmetric ``[D, D]``.

    The largest component of a unique eigenvector is positive (the first of those within 1e-6). For eigenvalues closer
    than 1e-6 relative, the basis is made from their projector and fixed seeded vectors, by Gram-Schmidt.
    """
    values, vectors = torch.linalg.eigh(covariance.double().cpu())
    values, vectors = values.flip(0).clamp(min=0), vectors.flip(1).contiguous()
    gaps = values[:-1] - values[1:]
    apart = gaps > torch.maximum(_ALIKE * values[:-1], _NOISE * values[:1])
    edges = [0, *(torch.nonzero(apart).flatten() + 1).tolist(), len(values)]
    groups = tuple(slice(a, b) for a, b in zip(edges[:-1], edges[1:], strict=True))
    wide = [group for group in groups if group.stop - group.start > 1]
    if wide:
        most = max(group.stop - group.start for group in wide)
        seeds = torch.from_numpy(np.random.default_rng([0x75, len(values)]).standard_normal((len(values), most)))
    size = vectors.abs()
    lead = (size >= size.amax(0) * (1 - _TIE)).to(torch.int8).argmax(0)  # argmax gives the first
    signs = torch.where(vectors.gather(0, lead[None])[0] < 0, -1.0, 1.0)
    basis = vectors * signs
    for group in wide:
        own = vectors[:, group]
        # P R = U (U^T R) = U Q T, so that U Q = P R T^-1 is the Gram-Schmidt basis of P R, whatever U is.
        factor, triangle = torch.linalg.qr(own.T @ seeds[:, : group.stop - group.start])
        basis[:, group] = own @ (factor * torch.where(triangle.diagonal() < 0, -1.0, 1.0))
    return EigenBasis(values, basis, groups)


def matched(vectors: torch.Tensor, previous: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Assign one of ``vectors`` to each column of ``previous``, with a sign.

    Args:
        vectors, previous: orthonormal columns ``[D, D]``.

    Returns:
        Column numbers ``[D]`` and signs ``[D]``: ``vectors[:, order] * signs`` has the largest possible sum of cosines
        with ``previous``, so that a head trained in the old basis changes least.
    """
    from scipy.optimize import linear_sum_assignment  # here: importing it takes 0.25 s in each process

    cosines = previous.double().cpu().T @ vectors
    _, order = linear_sum_assignment(cosines.abs().numpy(), maximize=True)
    order = torch.from_numpy(order)
    signs = torch.where(cosines[torch.arange(len(order)), order] < 0, -1.0, 1.0).double()
    return order, signs
