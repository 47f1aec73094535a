"""Projection heads: student features into a teacher's space."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from radioplat.models.features import Features


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
        bindings: name, width in and width out of the projections that bindings between modules need.
    """

    name: str
    summary_dim: int | None = None
    spatial_dim: int | None = None
    logits_dim: int | None = None
    token_slot: int = 0
    hidden: int = 0
    num_inner: int = 0
    bindings: tuple[tuple[str, int, int], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "bindings", tuple((n, int(a), int(b)) for n, a, b in self.bindings))  # JSON has lists


class TeacherHead(nn.Module):
    """The heads of one teacher.

    What the layers give is standardized; times ``<kind>_scale`` plus ``<kind>_mean`` it is in the teacher's raw space.
    Both are buffers, 1 and 0 unless a run has measured them (``distill.target_norm``), so that a checkpoint's heads
    speak raw features whatever the losses saw.

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
        self.bindings = nn.ModuleDict({name: nn.Linear(mine, theirs) for name, mine, theirs in a.bindings})
        for kind, width in (("summary", a.summary_dim), ("spatial", a.spatial_dim)):
            if width is not None:
                self.register_buffer(f"{kind}_mean", torch.zeros(width))
                self.register_buffer(f"{kind}_scale", torch.ones(()))

    def standardize(self, kind: str, features: torch.Tensor) -> torch.Tensor:
        """Raw features ``[..., Dt]`` of the teacher, or of this head, as the losses compare them; fp32."""
        if kind == "logits":
            return features.float()
        return (features.float() - getattr(self, f"{kind}_mean").float()) / getattr(self, f"{kind}_scale").float()

    def forward(self, features: Features) -> Features:
        """To the teacher's space: summary ``[B, Dt]``, spatial ``[B, h, w, Dt]``, logits ``[B, C]``."""
        tokens = features.named.get("tokens")
        token = features.summary if tokens is None else tokens[:, self.architecture.token_slot]
        return Features(
            None if self.summary is None else self._raw("summary", self.summary(token)),
            None
            if self.spatial is None or features.spatial is None
            else self._raw("spatial", self.spatial(features.spatial)),
            {} if self.logits is None else {"logits": self.logits(token)},
        )

    def _raw(self, kind: str, standardized: torch.Tensor) -> torch.Tensor:
        # In fp32: a mean that is large beside the spread would swallow it in bf16.
        scale, mean = getattr(self, f"{kind}_scale").float(), getattr(self, f"{kind}_mean").float()
        return standardized.float() * scale + mean
