"""The RADIO ViT: timm's transformer blocks behind a patch generator with a class token for each teacher."""

from __future__ import annotations

from typing import Any

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from radioplat.errors import SpecError
from radioplat.models.backbones.patch_generator import PatchGenerator
from radioplat.models.backbones.vitdet import Windows, from_windows, to_windows
from radioplat.models.features import Features

DEFAULT_REGISTER_MULTIPLE = 8  # by default the number of tokens before the patches is a multiple of this


class RadioViT(nn.Module):
    """A ViT student (AM-RADIO, Ranzinger et al. 2024).

    ``windows`` is set by a run with ViTDet windows, and used while training only.

    Args:
        num_class_tokens: one for each distinct teacher, at least 1.
        cpe_max_size: side in pixels of the position table.
        mlp_norm: a LayerNorm between the two layers of each MLP, as in the first C-RADIO.
        num_registers: registers after the class tokens; None: enough to make both a multiple of ``register_multiple``.
        kwargs: ``embed_dim, depth, num_heads, patch_size, mlp_ratio, drop_path_rate, ...`` as timm's VisionTransformer.
    """

    def __init__(
        self,
        *,
        patch_size: int,
        num_class_tokens: int,
        cpe_max_size: int,
        num_registers: int | None = None,
        register_multiple: int | None = None,
        mlp_norm: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        if num_registers is None:
            num_registers = -num_class_tokens % (register_multiple or DEFAULT_REGISTER_MULTIPLE)
        if cpe_max_size < patch_size:
            raise SpecError(
                f"must hold at least one patch of {patch_size} pixels, not {cpe_max_size}",
                where="model.backbone.cpe_max_size",
            )
        try:
            vit = VisionTransformer(
                img_size=patch_size,
                patch_size=patch_size,
                class_token=False,
                pos_embed="none",
                num_classes=0,
                global_pool="",
                **kwargs,
            )
        except (TypeError, AssertionError, ValueError) as error:
            raise SpecError(f"cannot build this ViT: {error}", where="model.backbone.kwargs") from None
        self.blocks, self.norm = vit.blocks, vit.norm
        if mlp_norm:
            for block in self.blocks:
                block.mlp.norm = nn.LayerNorm(block.mlp.fc1.out_features)
        self.patch_generator = PatchGenerator(patch_size, vit.embed_dim, cpe_max_size, num_class_tokens, num_registers)
        self.summary_dim = num_class_tokens * vit.embed_dim
        self.token_dim = self.spatial_dim = vit.embed_dim
        self.stride = patch_size
        self.needs_multiple = True
        self.grad_checkpointing = False
        self.windows: Windows | None = None

    @property
    def target(self) -> nn.Module:
        """The module relative to which users name submodules: itself."""
        return self

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute each block in backward instead of keeping its activations."""
        self.grad_checkpointing = enable

    def forward(self, images: torch.Tensor, wanted: frozenset[str] = frozenset({"summary", "spatial"})) -> Features:
        """Compute summary ``[B, T*D]``, spatial ``[B, H/p, W/p, D]`` and ``tokens [B, T, D]`` of normalised ``[B, 3, H,
        W]``."""
        h, w = images.shape[-2] // self.stride, images.shape[-1] // self.stride
        size = self.windows.draw(h, w) if self.windows is not None and self.training else 0
        tokens = self.norm(self._blocks(self.patch_generator(images), h, w, size))
        classes = tokens[:, : self.patch_generator.num_class_tokens]
        patches = tokens[:, self.patch_generator.num_prefix :]
        spatial = patches.reshape(images.shape[0], h, w, -1) if "spatial" in wanted else None
        return Features(classes.flatten(1), spatial, {"tokens": classes})

    def _blocks(self, tokens: torch.Tensor, h: int, w: int, size: int) -> torch.Tensor:
        """Run tokens ``[B, prefix + h * w, D]`` through all blocks, most of them in windows of ``size`` patches (0:
        none)."""
        prefix, inside = self.patch_generator.num_prefix, False
        for i, block in enumerate(self.blocks):
            windowed = bool(size) and self.windows is not None and i not in self.windows.global_layers
            if windowed is not inside:
                tokens = (to_windows if windowed else from_windows)(tokens, prefix, h, w, size)
                inside = windowed
            if self.grad_checkpointing and self.training:
                tokens = torch.utils.checkpoint.checkpoint(block, tokens, use_reentrant=False)
            else:
                tokens = block(tokens)
        return tokens
