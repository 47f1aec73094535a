"""Alternatives to PHI-S: one scale for all dimensions, a scale for each, and whitening by ZCA and PCA.

S = U diag(l) U^T is the covariance of the features. Whitening turns it into the identity: directions in which a
teacher hardly varies get the same variance as those in which it varies most. PHI-S does not do that.
"""

from __future__ import annotations

import torch

from radioplat.losses.target_transforms.eigenbasis import eigenbasis, matched
from radioplat.losses.target_transforms.transform import Transform

_SPREAD_FLOOR = 1e-6
# Eigenvalues below this share of the largest are rounding of bf16. Such directions keep a variance below 1.
_DEAD = 1e-7


def global_scale(variance: torch.Tensor) -> torch.Tensor:
    """Return one scale for all dimensions, a scalar: the root of the mean of their variances ``[D]``."""
    return variance.mean().sqrt().clamp(min=_SPREAD_FLOOR)


def channel_scales(variance: torch.Tensor) -> torch.Tensor:
    """Return a scale for each dimension, ``[D]``: the root of its variance."""
    return variance.sqrt().clamp(min=_SPREAD_FLOOR)


def zca(covariance: torch.Tensor) -> Transform:
    """W = S^(-1/2) = U diag(l)^(-1/2) U^T ``[D, D]``: the whitening that changes features least."""
    values, vectors = torch.linalg.eigh(covariance.double().cpu())
    roots = _roots(values, values.max())
    forward, inverse = (vectors / roots) @ vectors.T, (vectors * roots) @ vectors.T
    return Transform((forward + forward.T) / 2, (inverse + inverse.T) / 2)


def pca(covariance: torch.Tensor, previous: torch.Tensor | None = None) -> Transform:
    """W = diag(l)^(-1/2) U^T, the largest eigenvalue first, of ``covariance`` ``[D, D]``.

    For a group of nearly equal eigenvalues W is (B^T S B)^(-1/2) B^T, with B their canonical basis: this whitens too,
    and does not depend on rounding.

    Args:
        previous: the basis of an earlier transform of these features: rows keep its order and signs.
    """
    covariance = covariance.double().cpu()
    basis = eigenbasis(covariance)
    roots = _roots(basis.values, basis.values[0])
    forward, inverse = basis.vectors.T / roots[:, None], basis.vectors * roots
    for group in basis.groups:
        if group.stop - group.start > 1:
            own = basis.vectors[:, group]
            values, turn = torch.linalg.eigh(own.T @ covariance @ own)
            inner = _roots(values, basis.values[0])
            forward[group] = (turn / inner) @ turn.T @ own.T
            inverse[:, group] = own @ (turn * inner) @ turn.T
    vectors = basis.vectors
    if previous is not None:
        order, signs = matched(vectors, previous)
        vectors, inverse = vectors[:, order] * signs, inverse[:, order] * signs
        forward = forward[order] * signs[:, None]
    return Transform(forward, inverse, vectors)


def _roots(values: torch.Tensor, largest: torch.Tensor) -> torch.Tensor:
    """Return standard deviations along eigenvectors, with a floor so that dividing by them does not amplify
    rounding."""
    return values.clamp(min=max(float(largest) * _DEAD, _SPREAD_FLOOR**2)).sqrt()
