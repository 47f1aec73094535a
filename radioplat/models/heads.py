"""Heads: projections from student features into a teacher's space."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from timm.models.vision_transformer import Block
from torch import nn

from radioplat.errors import SpecError
from radioplat.models.features import Features
from radioplat.models.target_space import SCALAR, TargetSpaces

ATTENTION_HEADS = 16  # in each of the two blocks of an `attn` head (spec_fields, section 7)


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
        """Map ``[..., width_in]`` to ``[..., width_out]``."""
        x = self.fc1(x)
        for block in self.blocks:
            x = x + block(x)
        return self.final(x)


class AttentionHead(nn.Module):
    """RADIO's ``attn`` head: two ViT blocks (16 heads, LayerScale 1e-5) over the map's positions, then ``mlp``.

    Args:
        mlp: on the last dimension, from ``width_in`` to the teacher's.
    """

    def __init__(self, width_in: int, mlp: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block(width_in, ATTENTION_HEADS, init_values=1e-5) for _ in range(2)))
        self.mlp = mlp

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map ``[B, h, w, width_in]`` to ``[B, h, w, width_out]``."""
        return self.mlp(self.blocks(x.flatten(1, 2)).reshape(x.shape))


def shuffle_up(x: torch.Tensor, factor: int) -> torch.Tensor:
    """Apply pixel shuffle, channels last: ``[B, h, w, f * f * D]``, rows first, to ``[B, h * f, w * f, D]``."""
    if factor == 1:
        return x
    b, h, w, c = x.shape
    d = c // factor**2
    return x.reshape(b, h, w, factor, factor, d).permute(0, 1, 3, 2, 4, 5).reshape(b, h * factor, w * factor, d)


@dataclass(frozen=True)
class HeadArchitecture:
    """Widths of one teacher's head; a width of None means that no loss needs it.

    Attributes:
        token_slot: the class token that the summary head reads.
        hidden: hidden width of the MLP; 0 for a single linear layer.
        bindings: name, width in and width out of the projections that bindings between modules need.
        spatial_version: ``v2`` for :class:`MLP2`, ``attn`` for :class:`AttentionHead`.
        spatial_num_inner: of the map's head, if not ``num_inner``.
        upsample: how many times finer than the student's map the head's is, by pixel shuffle.
        summary_norm, spatial_norm: form of the target normalization: scalar, channels, matrix or layer.
        raw_kinds: kinds whose layers compute raw features, which are transformed for the losses as the targets are.
        identity: no layers: summary and map are the student's own features, which are in the teacher's raw space.
        text_tower: OpenCLIP's ``name:tag`` of the text tower whose space the summary is in; empty: none or unknown.
    """

    name: str
    summary_dim: int | None = None
    spatial_dim: int | None = None
    logits_dim: int | None = None
    token_slot: int = 0
    hidden: int = 0
    num_inner: int = 0
    bindings: tuple[tuple[str, int, int], ...] = ()
    spatial_version: str = "v2"
    spatial_num_inner: int | None = None
    upsample: int = 1
    summary_norm: str = SCALAR
    spatial_norm: str = SCALAR
    raw_kinds: tuple[str, ...] = ()
    identity: bool = False
    text_tower: str = field(default="", compare=False)  # changes no layer

    def __post_init__(self) -> None:
        object.__setattr__(self, "bindings", tuple((n, int(a), int(b)) for n, a, b in self.bindings))  # JSON has lists
        object.__setattr__(self, "raw_kinds", tuple(self.raw_kinds))


class TeacherHead(TargetSpaces):
    """The heads of one teacher.

    The layers compute in the space of the losses, which a run estimates (``distill.target_norm``); the transform from
    there to the teacher's raw space is stored here, so that a checkpoint's heads return raw features whatever the
    losses compared. Layers of the architecture's ``raw_kinds`` compute raw features themselves.

    Args:
        architecture: the widths.
        token_dim: width of the class token (or pooled vector) that it reads.
        spatial_dim: width of the student's map.
        where: the teacher's field path, for messages.

    Raises:
        SpecError: a map whose width is not a multiple of an ``attn`` head's attention heads; without layers, a width
            that is not the teacher's.
    """

    def __init__(
        self, architecture: HeadArchitecture, token_dim: int, spatial_dim: int, where: str = "distill.teacher"
    ) -> None:
        super().__init__()
        a = self.architecture = architecture

        def head(width_in: int, width_out: int, num_inner: int) -> nn.Module:
            if a.identity:
                if width_in != width_out:
                    message = f"without a head the widths must be equal: the student's is {width_in}, its {width_out}"
                    raise SpecError(message, where=f"{where}.use_head", hint="Set it to true.")
                return nn.Identity()
            return MLP2(width_in, a.hidden, width_out, num_inner) if a.hidden else nn.Linear(width_in, width_out)

        self.summary = None if a.summary_dim is None else head(token_dim, a.summary_dim, a.num_inner)
        self.spatial = None
        if a.spatial_dim is not None:
            inner = a.num_inner if a.spatial_num_inner is None else a.spatial_num_inner
            self.spatial = head(spatial_dim, a.spatial_dim * a.upsample**2, inner)
            if a.spatial_version == "attn":
                if spatial_dim % ATTENTION_HEADS:
                    message = f"{ATTENTION_HEADS} attention heads do not divide the student's map, {spatial_dim} wide"
                    raise SpecError(message, where=f"{where}.spatial_mlp_version", hint="Take v2.")
                self.spatial = AttentionHead(spatial_dim, self.spatial)
        self.logits = nn.Linear(token_dim, a.logits_dim) if a.logits_dim else None
        self.bindings = nn.ModuleDict({name: nn.Linear(mine, theirs) for name, mine, theirs in a.bindings})
        for kind, width, form in (
            ("summary", a.summary_dim, a.summary_norm),
            ("spatial", a.spatial_dim, a.spatial_norm),
        ):
            if width is not None:
                self.register_space(kind, width, form)

    def forward(self, features: Features, raw: bool = True) -> Features:
        """Map features to the teacher's space: summary ``[B, Dt]``, spatial ``[B, h * u, w * u, Dt]``, logits ``[B,
        C]``.

        ``u`` is the architecture's ``upsample``. With ``raw`` false, to the space of the losses: that of
        :meth:`standardize`.
        """
        tokens = features.named.get("tokens")
        token = features.summary if tokens is None else tokens[:, self.architecture.token_slot]
        summary = None if self.summary is None else self.summary(token)
        spatial = None
        if self.spatial is not None and features.spatial is not None:
            spatial = shuffle_up(self.spatial(features.spatial), self.architecture.upsample)
        return Features(
            self._in_space("summary", summary, raw),
            self._in_space("spatial", spatial, raw),
            {} if self.logits is None else {"logits": self.logits(token)},
        )

    def _in_space(self, kind: str, computed: torch.Tensor | None, raw: bool) -> torch.Tensor | None:
        """Return what the layers computed, raw or in the space of the losses."""
        if computed is None or raw == (kind in self.architecture.raw_kinds):
            return computed
        return self.raw(kind, computed) if raw else self.standardize(kind, computed)
