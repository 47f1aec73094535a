"""Projection heads: student features into a teacher's space."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from radioplat.models.features import Features
from radioplat.models.target_space import SCALAR, TargetSpaces


class MLP2(nn.Module):
    """RADIO's head: Linear -> n x [x + Linear(GELU(LN x))] -> LN -> GELU -> Linear, on the last dimension."""

    def __init__(self, width_in: int, hidden: int, width_out: int, num_inner: int = 0) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width_in, hidden)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(hidden), nn.GELU(), nn.Linear(hidden, hidden)) for _ in range(num_inner)
        )
        self.final = nn.Sequential(nn.LayerNorm(hidden), nn.GELU(), nn.Linear(hidden, width_out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[..., width_in]`` to ``[..., width_out]``."""
        x = self.fc1(x)
        for block in self.blocks:
            x = x + block(x)
        return self.final(x)


@dataclass(frozen=True)
class HeadArchitecture:
    """What one teacher's head maps to; a width of None means that no loss wants it.

    Attributes:
        token_slot: which class token feeds the summary head.
        hidden: hidden width of the MLP; 0 for a single linear layer.
        summary_norm, spatial_norm: what the transform of its targets can be: scalar, channels or matrix.
    """

    name: str
    summary_dim: int | None = None
    spatial_dim: int | None = None
    logits_dim: int | None = None
    token_slot: int = 0
    hidden: int = 0
    num_inner: int = 0
    summary_norm: str = SCALAR
    spatial_norm: str = SCALAR


class TeacherHead(TargetSpaces):
    """The heads of one teacher.

    What the layers give is in the space of the losses, which a run measures (``distill.target_norm``); the transform
    that leads from there to the teacher's raw space is held here, so that a checkpoint's heads speak raw features
    whatever the losses saw.

    Args:
        architecture: widths wanted.
        token_dim: width of the class token (or pooled vector) it reads.
        spatial_dim: width of the student's map.
    """

    def __init__(self, architecture: HeadArchitecture, token_dim: int, spatial_dim: int) -> None:
        super().__init__()
        a = self.architecture = architecture

        def head(width_in: int, width_out: int | None) -> nn.Module | None:
            if width_out is None:
                return None
            return MLP2(width_in, a.hidden, width_out, a.num_inner) if a.hidden else nn.Linear(width_in, width_out)

        self.summary = head(token_dim, a.summary_dim)
        self.spatial = head(spatial_dim, a.spatial_dim)
        self.logits = nn.Linear(token_dim, a.logits_dim) if a.logits_dim else None
        for kind, width, form in (
            ("summary", a.summary_dim, a.summary_norm),
            ("spatial", a.spatial_dim, a.spatial_norm),
        ):
            if width is not None:
                self.hold(kind, width, form)

    def forward(self, features: Features, raw: bool = True) -> Features:
        """To the teacher's space: summary ``[B, Dt]``, spatial ``[B, h, w, Dt]``, logits ``[B, C]``.

        With ``raw`` false, to the space of the losses: what :meth:`standardize` makes of the teacher's features.
        """
        tokens = features.named.get("tokens")
        token = features.summary if tokens is None else tokens[:, self.architecture.token_slot]
        summary = None if self.summary is None else self.summary(token)
        spatial = None if self.spatial is None or features.spatial is None else self.spatial(features.spatial)
        return Features(
            self.raw("summary", summary) if raw and summary is not None else summary,
            self.raw("spatial", spatial) if raw and spatial is not None else spatial,
            {} if self.logits is None else {"logits": self.logits(token)},
        )
