"""PHI-S: a rotation after which every dimension has the same variance, and one scale (Ranzinger et al. 2024).

With the covariance S = U diag(l) U^T, phi = sqrt(mean(l)) and a normalised Hadamard matrix H:

    W = H U^T / phi,    y' = W (y - mu),    y = phi U H^T y' + mu.

The covariance of y' is H diag(l) H^T / phi^2; all entries of H have the square 1/D, so its diagonal is mean(l) / phi^2
= 1. Distances keep their proportions: an error of the student means the same in any direction.
"""

from __future__ import annotations

import math

import torch

from radioplat.losses.target_transforms.eigenbasis import eigenbasis, matched
from radioplat.losses.target_transforms.hadamard import has_hadamard, mixing_matrix
from radioplat.losses.target_transforms.transform import Transform

_SPREAD_FLOOR = 1e-6
_EVEN = 1e-9


def phi_s(covariance: torch.Tensor, previous: torch.Tensor | None = None) -> Transform:
    """Compute PHI-S of features with ``covariance`` ``[D, D]``.

    If there is no Hadamard matrix of order D, rotations in planes follow the orthogonal matrix that replaces it, until
    every variance is 1 (Schur and Horn: such rotations exist for any matrix).

    Args:
        previous: the basis of an earlier transform of these features, to which the new one is aligned.
    """
    basis = eigenbasis(covariance)
    phi = max(math.sqrt(float(basis.values.mean())), _SPREAD_FLOOR)
    vectors = basis.vectors
    if previous is not None:
        order, signs = matched(vectors, previous)
        vectors = vectors[:, order] * signs
    width = len(vectors)
    rotation = torch.from_numpy(mixing_matrix(width).copy()) @ vectors.T
    if not has_hadamard(width):
        rotation = evened(rotation, covariance.double().cpu())
    return Transform(rotation / phi, rotation.T * phi, vectors)


def tao_phi_s(covariance: torch.Tensor) -> Transform:
    """Compute PHI-S as TAO does: eigenvectors in LAPACK's order, smallest eigenvalue first, and with its signs.

    Losses that are the same after a rotation, such as MSE of both sides, do not see the difference from :func:`phi_s`.
    """
    values, vectors = torch.linalg.eigh(covariance.double().cpu())
    phi = max(math.sqrt(float(values.clamp(min=0).mean())), _SPREAD_FLOOR)
    rotation = torch.from_numpy(mixing_matrix(len(vectors)).copy()) @ vectors.T
    return Transform(rotation / phi, rotation.T * phi)


def evened(rotation: torch.Tensor, covariance: torch.Tensor) -> torch.Tensor:
    """Rotate ``rotation`` R in planes until the diagonal of R S R^T is constant; at most D - 1 rotations.

    Args:
        rotation: orthogonal, float64 ``[D, D]``.
        covariance: S, float64 ``[D, D]``.
    """
    rows, spread = rotation.clone(), rotation @ covariance @ rotation.T
    aim = float(spread.diagonal().mean())
    for i in range(len(rows) - 1):
        off = spread.diagonal() - aim
        a = float(off[i])
        if abs(a) <= _EVEN * aim:
            continue
        # The deviations of later rows sum to -a: choose the row that deviates most in that direction.
        j = i + 1 + int((-math.copysign(1.0, a) * off[i + 1 :]).argmax())
        b, c = float(off[j]), float(spread[i, j])
        if a * b >= 0:
            continue  # all that remains is rounding
        # The smaller of the two angles that solve a cos^2 - 2 c cos sin + b sin^2 = 0.
        tangent = a / (c + math.copysign(math.sqrt(c * c - a * b), c))
        cosine = 1 / math.hypot(1, tangent)
        sine = tangent * cosine
        turn = torch.tensor([[cosine, -sine], [sine, cosine]], dtype=torch.float64)
        rows[[i, j]] = turn @ rows[[i, j]]
        spread[[i, j]] = turn @ spread[[i, j]]
        spread[:, [i, j]] = spread[:, [i, j]] @ turn.T
    return rows
