"""A target normalization y' = W (y - mu) and its inverse."""

from __future__ import annotations

from dataclasses import dataclass

import torch


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
