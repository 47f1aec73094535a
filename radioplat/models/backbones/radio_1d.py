"""The RADIO 1D ViT: its map is made from a short sequence of tokens in an order, of which a user keeps the first n.

Structure as in NVlabs/RADIO's ``radio1d.py`` (README, "RADIO1D (Research)"; no weights are published): an encoder whose
patches are merged two by two; the first n of its patch tokens; a decoder that sees these, learned filler tokens in the
place of the others, and class tokens of its own, so that summary and map contain what the n tokens hold and no more.
"""

from __future__ import annotations

from typing import Any

import torch
from timm.layers import LayerNorm
from torch import nn
from torch.nn import functional as F

from radioplat.errors import SpecError
from radioplat.models.backbones.radio_vit import RadioViT
from radioplat.models.features import Features

SEQUENCE = "sequence"
FILLER_SIDE = 16  # of the table of filler tokens, which is interpolated to the map's size
_KWARGS = "model.backbone.kwargs"


class PatchMerging(nn.Module):
    """Two by two neighbours become one of twice the width (Swin, Liu et al. 2021, section 3.1)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * width)
        self.reduction = nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map ``[B, h, w, D]`` to ``[B, ceil(h / 2), ceil(w / 2), 2 * D]``."""
        x = F.pad(x, (0, 0, 0, x.shape[2] % 2, 0, x.shape[1] % 2))
        b, h, w, d = x.shape
        x = x.reshape(b, h // 2, 2, w // 2, 2, d).permute(0, 1, 3, 4, 2, 5).flatten(3)
        return self.reduction(self.norm(x))


class PatchSplitting(nn.Module):
    """The reverse of :class:`PatchMerging`: one becomes two by two neighbours of half the width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.expansion = nn.Linear(width, 2 * width, bias=False)
        self.norm = nn.LayerNorm(width // 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map ``[B, h, w, D]`` to ``[B, 2 * h, 2 * w, D / 2]``."""
        b, h, w, d = x.shape
        x = self.expansion(x).reshape(b, h, w, 2, 2, d // 2).permute(0, 1, 3, 2, 4, 5)
        return self.norm(x.reshape(b, 2 * h, 2 * w, d // 2))


class Radio1D(RadioViT):
    """A RADIO ViT behind a sequence of tokens.

    In training a micro-batch keeps a random number of tokens, each from 1 to all with the same probability, so that the
    first ones learn most. Otherwise ``num_tokens`` of them (None or more than N: all), which is the
    only attribute that a user sets. ``named["sequence"]`` is these tokens, ``[B, n, 2 * D]``.

    Args:
        merge_at: the block of the encoder before which patches are merged; default: after four fifths of them.
        decoder_depth: blocks of the decoder; before the second half of them, tokens are split.
        kwargs: as :class:`RadioViT`.

    Raises:
        SpecError: a number is out of its range.
    """

    def __init__(self, *, merge_at: int | None = None, decoder_depth: int = 6, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        kwargs |= {"cpe_max_size": kwargs["patch_size"]}  # of the models below, whose blocks alone are used
        depth, width, heads = len(self.blocks), self.token_dim, kwargs["num_heads"]
        merge_at = depth * 4 // 5 if merge_at is None else merge_at
        if depth < 2:
            raise SpecError("a sequence needs at least two blocks", where=f"{_KWARGS}.depth")
        if type(merge_at) is not int or not 0 < merge_at < depth:
            raise SpecError(f"must be a number from 1 to {depth - 1}, not {merge_at}", where=f"{_KWARGS}.merge_at")
        if kwargs.get("final_norm") is False:
            raise SpecError("the sequence always ends in a norm", where=f"{_KWARGS}.final_norm", hint="Leave it out.")
        if type(decoder_depth) is not int or decoder_depth < 2:
            raise SpecError(f"must be a number from 2, not {decoder_depth}", where=f"{_KWARGS}.decoder_depth")
        self.num_tokens: int | None = None
        self.merge_at, self.split_at = merge_at, decoder_depth // 2
        self.blocks = nn.Sequential(*self.blocks[:merge_at], *_blocks(kwargs, 2, 2 * heads, depth - merge_at))
        self.merging, self.merged_prefix = PatchMerging(width), nn.Linear(width, 2 * width, bias=False)
        self.norm = LayerNorm(2 * width)
        prefix = self.patch_generator.num_prefix
        self.decoder_prefix = nn.Parameter(torch.randn(prefix, 2 * width) * (2 * width) ** -0.5)
        self.filler = nn.Parameter(torch.randn(FILLER_SIDE, FILLER_SIDE, 2 * width) * (2 * width) ** -0.5)
        kwargs["qkv_bias"] = False  # NVlabs' decoder: no bias here, and heads of twice the width
        wide = _blocks(kwargs, 2, heads, self.split_at)
        narrow = _blocks(kwargs, 1, max(1, heads // 2), decoder_depth - self.split_at)
        self.decoder_blocks = nn.Sequential(*wide, *narrow)
        self.splitting, self.split_prefix = PatchSplitting(2 * width), nn.Linear(2 * width, width, bias=False)
        self.decoder_norm = LayerNorm(width)

    def forward(self, images: torch.Tensor, wanted: frozenset[str] = frozenset({"summary", "spatial"})) -> Features:
        """Compute features as :class:`RadioViT` does, and the sequence, of normalised images ``[B, 3, H, W]``."""
        h, w = images.shape[-2] // self.stride, images.shape[-1] // self.stride
        encoded = self._encode(images, h, w)
        rows, columns = (h + 1) // 2, (w + 1) // 2
        count = self._draw(rows * columns) if self.training else min(self.num_tokens or rows * columns, rows * columns)
        tokens = self._decode(encoded, count, rows, columns)
        prefix = self.patch_generator.num_prefix
        classes = tokens[:, : self.patch_generator.num_class_tokens]
        spatial = None
        if "spatial" in wanted:
            spatial = tokens[:, prefix:].reshape(tokens.shape[0], 2 * rows, 2 * columns, -1)[:, :h, :w]
        named = {"tokens": classes} if self.training else {"tokens": classes, SEQUENCE: encoded[:, :count]}
        return Features(classes.flatten(1), spatial, named)

    def _encode(self, images: torch.Tensor, h: int, w: int) -> torch.Tensor:
        """Return the patch tokens ``[B, ceil(h / 2) * ceil(w / 2), 2 * D]``."""
        tokens, prefix = self.patch_generator(images), self.patch_generator.num_prefix
        for i, block in enumerate(self.blocks):
            if i == self.merge_at:
                patches = self.merging(tokens[:, prefix:].reshape(tokens.shape[0], h, w, -1)).flatten(1, 2)
                tokens = torch.cat([self.merged_prefix(tokens[:, :prefix]), patches], dim=1)
            tokens = self._run(block, tokens)
        return self.norm(tokens[:, prefix:])

    def _decode(self, encoded: torch.Tensor, count: int | torch.Tensor, rows: int, columns: int) -> torch.Tensor:
        """Return class tokens, registers and the map's tokens ``[B, prefix + 4 * rows * columns, D]``."""
        filler = F.interpolate(self.filler.permute(2, 0, 1)[None], (rows, columns), mode="bilinear")
        kept = torch.arange(rows * columns, device=encoded.device)[:, None] < count
        patches = torch.where(kept, encoded, filler.flatten(2).transpose(1, 2).to(encoded.dtype))
        own = self.decoder_prefix.to(encoded.dtype).expand(encoded.shape[0], -1, -1)
        tokens, prefix = torch.cat([own, patches], dim=1), self.patch_generator.num_prefix
        for i, block in enumerate(self.decoder_blocks):
            if i == self.split_at:
                split = self.splitting(tokens[:, prefix:].reshape(tokens.shape[0], rows, columns, -1)).flatten(1, 2)
                tokens = torch.cat([self.split_prefix(tokens[:, :prefix]), split], dim=1)
            tokens = self._run(block, tokens)
        return self.decoder_norm(tokens)

    def _run(self, block: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
        if self.grad_checkpointing and self.training:
            return torch.utils.checkpoint.checkpoint(block, tokens, use_reentrant=False)
        return block(tokens)

    @staticmethod
    @torch.compiler.disable  # not traced: a number of its own for each micro-batch
    def _draw(most: int) -> torch.Tensor:
        """Draw how many tokens a micro-batch keeps, 1 to ``most``; always a number of torch's CPU generator."""
        return (torch.rand((), device="cpu") * most).floor() + 1  # without a dimension it compares on any device


def _blocks(kwargs: dict[str, Any], factor: int, heads: int, depth: int) -> nn.Sequential:
    """Return ``depth`` transformer blocks of ``factor`` times the width, otherwise as those of the encoder."""
    width = factor * kwargs["embed_dim"]
    return RadioViT(**{**kwargs, "embed_dim": width, "num_heads": heads, "depth": depth}).blocks
