"""FAN: a vision transformer with attention over channels, on the first stages of a ConvNeXt.

Zhou et al. 2022, Understanding The Robustness in Vision Transformers (arXiv 2204.12451); TAO's ``fan_tiny`` to
``fan_large``, which timm does not have. Importing this module registers them with timm. Tensor names are those of the
published models, except inside timm's ConvNeXt, Fourier positions and class attention (which FAN shares with XCiT).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from timm.layers import DropPath, trunc_normal_
from timm.models import build_model_with_cfg, register_model
from timm.models._registry import generate_default_cfgs
from timm.models.convnext import ConvNeXt
from timm.models.xcit import ClassAttentionBlock, PositionalEncodingFourier
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

_LAYER_NORM = partial(nn.LayerNorm, eps=1e-6)


class Fan(nn.Module):
    """The model: images ``[B, 3, H, W]``, both sides multiples of 16, to a class token and a map.

    Its features are tokens ``[B, 1 + H/16 * W/16, D]``.

    Args:
        depths: blocks of the two ConvNeXt stages, of 128 and 256 channels.
        depth: blocks of the transformer.
    """

    num_prefix_tokens = 1

    def __init__(
        self,
        embed_dim: int = 384,
        depth: int = 10,
        num_heads: int = 8,
        depths: tuple[int, int] = (3, 3),
        num_classes: int = 1000,
        in_chans: int = 3,
        mlp_ratio: float = 4.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__()
        if embed_dim % num_heads:
            raise ValueError(f"embed_dim {embed_dim} is not a multiple of num_heads {num_heads}")
        self.num_classes, self.num_features, self.embed_dim = num_classes, embed_dim, embed_dim
        self.grad_checkpointing = False
        self.patch_embed = HybridEmbed(embed_dim, depths, in_chans)
        self.pos_embed = PositionalEncodingFourier(dim=embed_dim)
        self.blocks = nn.ModuleList(FanBlock(embed_dim, num_heads, mlp_ratio, drop_path_rate) for _ in range(depth))
        self.cls_token = nn.Parameter(torch.zeros(1, 1, embed_dim))
        self.cls_attn_blocks = nn.ModuleList(
            ClassAttentionBlock(
                embed_dim, num_heads, mlp_ratio, qkv_bias=True, norm_layer=_LAYER_NORM, tokens_norm=True
            )
            for _ in range(2)
        )
        self.norm = _LAYER_NORM(embed_dim)
        self.head = nn.Linear(embed_dim, num_classes) if num_classes else nn.Identity()
        trunc_normal_(self.cls_token, std=0.02)
        self.apply(_init)

    def no_weight_decay(self) -> set[str]:
        """Return names of parameters that weight decay leaves out."""
        return {name for name, _ in self.named_parameters() if name.endswith(("cls_token", "temperature"))}

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Enable or disable the recomputation of each block in the backward pass."""
        self.grad_checkpointing = enable

    def forward_features(self, images: torch.Tensor) -> torch.Tensor:
        """Return the class token and the map's tokens, ``[B, 1 + H/16 * W/16, D]``."""
        maps = self.patch_embed(images)
        height, width = maps.shape[-2:]
        maps = maps + self.pos_embed(len(maps), height, width)
        x = maps.flatten(2).transpose(1, 2)
        for block in self.blocks:
            again = self.grad_checkpointing and self.training
            x = checkpoint(block, x, height, width, use_reentrant=False) if again else block(x, height, width)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1)
        for block in self.cls_attn_blocks:
            x = block(x)
        return self.norm(x)

    def forward_head(self, x: torch.Tensor, pre_logits: bool = False) -> torch.Tensor:
        """Return the class token, or its logits."""
        return x[:, 0] if pre_logits else self.head(x[:, 0])

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits ``[B, num_classes]``."""
        return self.forward_head(self.forward_features(images))


class HybridEmbed(nn.Module):
    """Patch embedding: two ConvNeXt stages, then 2 x 2 patches of their map; returns ``[B, D, H/16, W/16]``."""

    patch_size = (16, 16)

    def __init__(self, embed_dim: int, depths: tuple[int, int], in_chans: int) -> None:
        super().__init__()
        # timm's ConvNeXt has four stages; only the first two are used.
        whole = ConvNeXt(in_chans, 0, depths=(*depths, 1, 1), dims=(128, 256, 8, 8))
        self.backbone = nn.ModuleDict({"stem": whole.stem, "stages": whole.stages[:2]})
        self.proj = nn.Conv2d(256, embed_dim, 2, 2)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the map ``[B, D, H/16, W/16]`` of images ``[B, C, H, W]``."""
        return self.proj(self.backbone["stages"](self.backbone["stem"](images)))


class FanBlock(nn.Module):
    """Self-attention over tokens, then channel attention; each is added to the residual with a learned scale per
    channel."""

    def __init__(self, dim: int, num_heads: int, mlp_ratio: float, drop_path: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = _LAYER_NORM(dim), _LAYER_NORM(dim)
        self.attn = TokenMixing(dim, num_heads)
        self.mlp = ChannelProcessing(dim, num_heads, int(dim * mlp_ratio))
        self.gamma1, self.gamma2 = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.ones(dim))
        self.drop_path = DropPath(drop_path) if drop_path else nn.Identity()

    def forward(self, x: torch.Tensor, height: int, width: int) -> torch.Tensor:
        """Return tokens ``[B, height * width, D]`` of tokens of the same shape."""
        x = x + self.drop_path(self.gamma1 * self.attn(self.norm1(x)))
        return x + self.drop_path(self.gamma2 * self.mlp(self.norm2(x), height, width))


class TokenMixing(nn.Module):
    """Self-attention of tokens."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.q, self.kv, self.proj = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return tokens ``[B, N, D]`` of tokens of the same shape."""
        q, k, v = (_by_head(part, self.num_heads) for part in (self.q(x), *self.kv(x).chunk(2, -1)))
        return self.proj(_together(scaled_dot_product_attention(q, k, v)))


class ChannelProcessing(nn.Module):
    """Channel attention: the output of an MLP on the tokens, times a weight per channel.

    The prototype is the mean over a head's channels of the channels' softmax over tokens. A channel's weight is the
    sigmoid of the product of its own softmax with the prototype, times a temperature per head.
    """

    def __init__(self, dim: int, num_heads: int, hidden: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.temperature = nn.Parameter(torch.ones(num_heads, 1, 1))
        self.q = nn.Linear(dim, dim)
        self.mlp_v, self.norm_v = ConvMlp(dim, hidden), nn.LayerNorm(dim)

    def forward(self, x: torch.Tensor, height: int, width: int) -> torch.Tensor:
        """Return tokens ``[B, height * width, D]`` of tokens of the same shape."""
        shares = _by_head(self.q(x), self.num_heads).softmax(2)
        prototype = _by_head(x, self.num_heads).softmax(2).mean(3, keepdim=True)
        weight = (shares * prototype).sum(2, keepdim=True).sigmoid() * self.temperature
        return _together(weight * _by_head(self.norm_v(self.mlp_v(x, height, width)), self.num_heads))


class ConvMlp(nn.Module):
    """Two linear layers with depthwise convolutions between them, on the tokens arranged as a map."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(dim, hidden), nn.Linear(hidden, dim)
        self.dwconv = nn.ModuleDict(
            {
                "conv1": nn.Conv2d(hidden, hidden, 3, padding=1, groups=hidden),
                "act": nn.GELU(),
                "bn": nn.BatchNorm2d(hidden),
                "conv2": nn.Conv2d(hidden, hidden, 3, padding=1, groups=hidden),
            }
        )
        self.gamma = nn.Parameter(torch.ones(hidden))

    def forward(self, x: torch.Tensor, height: int, width: int) -> torch.Tensor:
        """Return tokens ``[B, height * width, D]`` of tokens of the same shape."""
        x = self.fc1(x)
        maps = x.transpose(1, 2).unflatten(2, (height, width))
        for layer in self.dwconv.values():
            maps = layer(maps)
        return self.fc2(x + self.gamma * maps.flatten(2).transpose(1, 2))


def _by_head(x: torch.Tensor, heads: int) -> torch.Tensor:
    """Reshape ``[B, N, D]`` to ``[B, heads, N, D / heads]``."""
    return x.unflatten(2, (heads, -1)).transpose(1, 2)


def _together(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(1, 2).flatten(2)


def _init(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


_SIZES: dict[str, dict[str, Any]] = {
    "fan_tiny_8_p4_hybrid": dict(embed_dim=192, depth=8),
    "fan_small_12_p4_hybrid": dict(embed_dim=384, depth=10),
    "fan_base_16_p4_hybrid": dict(embed_dim=448, depth=16),
    "fan_large_16_p4_hybrid": dict(embed_dim=480, depth=22, num_heads=10, depths=(3, 5)),
}
default_cfgs = generate_default_cfgs(
    {
        name: dict(
            url="",
            num_classes=1000,
            input_size=(3, 224, 224),
            mean=(0.485, 0.456, 0.406),
            std=(0.229, 0.224, 0.225),
            first_conv="patch_embed.backbone.stem.0",
            classifier="head",
        )
        for name in _SIZES
    }
)


def _register(name: str) -> None:
    def build(**kwargs: Any) -> Fan:
        """Return a FAN of this size, as timm's registry calls it."""
        return build_model_with_cfg(Fan, name, kwargs.pop("pretrained", False), **{**_SIZES[name], **kwargs})

    build.__name__ = name
    register_model(build)


for _name in _SIZES:
    _register(_name)
