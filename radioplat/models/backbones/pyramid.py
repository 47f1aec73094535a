"""Feature pyramid of a backbone: maps at three strides, as a detector needs them."""

from __future__ import annotations

import torch
from torch import nn

from radioplat.errors import SpecError
from radioplat.models.backbones.radio_vit import RadioViT
from radioplat.models.backbones.timm_backbone import TimmBackbone


class Pyramid(nn.Module):
    """Three maps, each of half the resolution of the one before.

    A backbone that has maps at such strides (ResNet, ConvNeXt, Swin...) returns its last three. The last map of a plain
    ViT with patches of p pixels is used three times: after a deconvolution (stride p/2), unchanged (p), and after a
    max-pooling (2p); the simple feature pyramid of Li et al. 2022, Exploring Plain Vision Transformer Backbones,
    section 3.

    The backbone is not a submodule but an argument of :meth:`forward`: only the layers that the pyramid adds have
    weights here.

    Attributes:
        strides: pixels, ascending.
        channels: of each map.

    Raises:
        SpecError: the backbone has neither one map nor maps at three strides that double.
    """

    def __init__(self, backbone: RadioViT | TimmBackbone, where: str = "model.backbone") -> None:
        super().__init__()
        self.plain = bool(backbone.needs_multiple)
        self.up: nn.Module | None = None
        self.down: nn.Module | None = None
        self.taken: list[int] = []
        if self.plain:
            width, stride = backbone.spatial_dim, backbone.stride
            if stride % 2:
                raise SpecError(f"patches of {stride} pixels cannot be halved for a pyramid", where=where)
            self.up = nn.ConvTranspose2d(width, width // 2, 2, 2)
            self.down = nn.MaxPool2d(2)
            self.strides, self.channels = (stride // 2, stride, 2 * stride), (width // 2, width, width)
            return
        if not hasattr(backbone.model, "forward_intermediates"):
            raise SpecError(f"timm's {backbone.name} gives no intermediate maps", where=where)
        info = backbone.model.feature_info
        reductions = [int(i["reduction"]) for i in (info if isinstance(info, list) else info.info)]
        last = max(reductions)
        wanted = (last // 4, last // 2, last)
        if any(stride not in reductions for stride in wanted):
            raise SpecError(f"timm's {backbone.name} has maps at strides {reductions}, not {wanted}", where=where)
        self.strides = wanted
        self.taken = [len(reductions) - 1 - reductions[::-1].index(stride) for stride in wanted]
        # Measured: pruning changes widths, and timm's table keeps the original ones.
        self.channels = tuple(level.shape[1] for level in self._probe(backbone))

    def forward(self, backbone: RadioViT | TimmBackbone, images: torch.Tensor) -> list[torch.Tensor]:
        """Compute the maps ``[B, C, H/s, W/s]``, one for each stride s.

        Args:
            images: normalised ``[B, 3, H, W]``, both sides multiples of the greatest stride.

        Raises:
            SpecError: the images have another size.
        """
        last = self.strides[-1]
        if images.shape[-2] % last or images.shape[-1] % last:
            size = f"{images.shape[-1]} x {images.shape[-2]}"
            hint = f"Multiples of {last}."
            raise SpecError(f"a detector of stride {last} takes no images of {size} pixels", hint=hint)
        if self.up is None or self.down is None:
            return self._intermediates(backbone, images)
        features = backbone(images, frozenset({"spatial"})).spatial.permute(0, 3, 1, 2)
        return [self.up(features), features, self.down(features)]

    def _intermediates(self, backbone: TimmBackbone, images: torch.Tensor) -> list[torch.Tensor]:
        return backbone.model.forward_intermediates(
            images, indices=self.taken, output_fmt="NCHW", intermediates_only=True
        )

    def _probe(self, backbone: TimmBackbone) -> list[torch.Tensor]:
        training = backbone.training
        side = backbone.arguments.get("img_size") or 2 * self.strides[-1]
        first = next(backbone.parameters())
        try:
            with torch.no_grad():
                return self._intermediates(backbone.eval(), first.new_zeros(1, 3, side, side))
        finally:
            backbone.train(training)
