"""A target normalization y' = W (y - mu) and its inverse, and the form of W for each kind of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from radioplat.models.target_space import CHANNELS, LAYER, MATRIX, SCALAR
from radioplat.spec.schema.distill import TargetNormType

FORMS = {
    TargetNormType.none: SCALAR,
    TargetNormType.standardize: SCALAR,
    TargetNormType.standardize_channels: CHANNELS,
    TargetNormType.phi_s: MATRIX,
    TargetNormType.zca: MATRIX,
    TargetNormType.pca: MATRIX,
    TargetNormType.tao_phi_s: MATRIX,
    TargetNormType.layer_norm: LAYER,
}


@dataclass(frozen=True)
class Transform:
    """A linear map of centred features, float64 on the CPU.

    Attributes:
        forward: W, ``[D, D]``.
        inverse: of W, ``[D, D]``.
        basis: the eigenvectors that it was made from as columns ``[D, D]``, in its own order and with its own signs;
            None if W does not depend on those.
    """

    forward: torch.Tensor
    inverse: torch.Tensor
    basis: torch.Tensor | None = None
