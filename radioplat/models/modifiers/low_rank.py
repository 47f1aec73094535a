"""Low-rank factorization: a linear layer, or a 1 x 1 convolution, as two narrower ones in a row."""

from __future__ import annotations

from typing import TypeAlias

from torch import nn

from radioplat.errors import SpecError

Splittable: TypeAlias = nn.Linear | nn.Conv2d


def splittable(module: nn.Module) -> bool:
    """Return whether :func:`pair` supports this layer; subclasses are not supported."""
    if type(module) is nn.Conv2d:
        return module.kernel_size == (1, 1) and module.groups == 1 and module.padding in ((0, 0), "valid", "same")
    return type(module) is nn.Linear


def pair(layer: Splittable, rank: int) -> nn.Sequential:
    """Build two untrained layers with ``rank`` channels between them, which replace ``layer``.

    The first has the stride, the second the bias. They are ordinary layers, so quantization and export need no special
    case.
    """
    bias, like = layer.bias is not None, {"device": layer.weight.device, "dtype": layer.weight.dtype}
    if isinstance(layer, nn.Linear):
        return nn.Sequential(
            nn.Linear(layer.in_features, rank, bias=False, **like), nn.Linear(rank, layer.out_features, bias, **like)
        )
    first = nn.Conv2d(layer.in_channels, rank, 1, layer.stride, bias=False, **like)
    return nn.Sequential(first, nn.Conv2d(rank, layer.out_channels, 1, bias=bias, **like))


def split_layers(backbone: nn.Module, ranks: dict[str, int]) -> None:
    """Replace layers of ``backbone`` by untrained pairs, in place.

    Args:
        ranks: rank by the layer's name in ``backbone``.

    Raises:
        SpecError: there is no such layer, or it cannot be split.
    """
    for name, rank in ranks.items():
        parent, _, leaf = name.rpartition(".")
        try:
            owner, layer = backbone.get_submodule(parent), backbone.get_submodule(name)
        except AttributeError:
            raise SpecError(f"this backbone has no layer {name}", where="model.backbone.type") from None
        if not splittable(layer):
            raise SpecError(f"layer {name} of this backbone cannot be split", where="model.backbone.type")
        owner._modules[leaf] = pair(layer, rank)
