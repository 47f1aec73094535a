"""What a target transform is: y' = W (y - mu), and its way back."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Transform:
    """A linear map of features with the mean taken away, float64 on the CPU.

    Attributes:
        forward: W, ``[D, D]``.
        inverse: of W, ``[D, D]``.
        basis: the eigenvectors it was made from as columns ``[D, D]``, in its own order and with its own signs; None
            where W does not depend on those.
    """

    forward: torch.Tensor
    inverse: torch.Tensor
    basis: torch.Tensor | None = None
