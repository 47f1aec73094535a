"""Other libraries' names of timm's models, renamed by timm's own filters."""

from __future__ import annotations

import contextlib
import inspect
import io
import sys
from collections.abc import Mapping

import timm
import torch
from torch import nn

from radioplat.models.backbones.timm_shapes import timm_names
from radioplat.models.on_meta import on_meta

# TAO's models with the names of Meta's ConvNeXt.
_META = (
    *(f"convnext_{size}" for size in ("tiny", "small", "base", "large", "xlarge")),
    *(f"convnextv2_{size}" for size in ("atto", "femto", "pico", "nano", "tiny", "base", "large", "huge")),
    *(f"edgenext_{size}" for size in ("xx_small", "x_small", "small", "base")),
)

# EfficientNets have other names in EfficientNet-PyTorch, which many packages ship, in the same order.
_EFFICIENTNET_MARK = "_conv_stem.weight"
_EFFICIENTNET_SIZES = (*(f"lite{i}" for i in range(5)), *(f"b{i}" for i in range(9)))


def renamed_by_timm(model: nn.Module, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor] | None:
    """Rename ``tensors`` by timm's own checkpoint filter of the family; None if there is none or it fails.

    The names of EfficientNet-PyTorch, which timm's filters do not know, are renamed, too. A position table of another
    size is resampled by timm. A patch of another size makes it another architecture: None.
    """
    if _EFFICIENTNET_MARK in tensors:
        return _renamed_by_order(model.state_dict(), tensors)
    filter_fn = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
    if filter_fn is None:
        return None
    kernel = next((v for k, v in tensors.items() if k.endswith("patch_embed.proj.weight") and v.ndim == 4), None)
    own = getattr(getattr(getattr(model, "patch_embed", None), "proj", None), "weight", None)
    if kernel is not None and own is not None and kernel.shape[2:] != own.shape[2:]:
        return None
    arguments = [dict(tensors), model][: len(inspect.signature(filter_fn).parameters)]
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # some of these filters print
            return filter_fn(*arguments)
    except Exception:  # for an unknown layout the filter may raise anything
        return None


def renamed_efficientnet(tensors: Mapping[str, torch.Tensor]) -> tuple[str, dict[str, torch.Tensor]] | None:
    """Return the type and the tensors by timm's names of a file of EfficientNet-PyTorch; None for any other file."""
    if _EFFICIENTNET_MARK not in tensors:
        return None
    for name in (f"tf_efficientnet_{size}" for size in _EFFICIENTNET_SIZES):
        with on_meta():
            wanted = timm.create_model(name).state_dict()
        if renamed := _renamed_by_order(wanted, tensors):
            return name, renamed
    return None


def _renamed_by_order(
    wanted: Mapping[str, torch.Tensor], tensors: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor] | None:
    """Rename by the order of the forward pass, which both sides have; None unless all shapes agree.

    The last part of a name (weight, running_mean, ...) is equal on both sides; without it the four vectors of a
    BatchNorm, which have equal shapes, could be exchanged. Without a classifier in ``wanted`` that of ``tensors`` is
    left out.
    """
    theirs = [name for name in tensors if len(wanted) == len(tensors) or not name.startswith("_fc.")]
    if len(theirs) != len(wanted):
        return None
    pairs = list(zip(wanted, theirs, strict=True))
    alike = (
        wanted[ours].shape == tensors[name].shape and ours.rpartition(".")[2] == name.rpartition(".")[2]
        for ours, name in pairs
    )
    return {ours: tensors[name] for ours, name in pairs} if all(alike) else None


def timm_types(tensors: Mapping[str, torch.Tensor]) -> list[str]:
    """Return the timm models that ``tensors`` fit, by timm's names or, for a ConvNeXt or an EdgeNeXt, by Meta's."""
    if "downsample_layers.0.0.weight" not in tensors:
        return timm_names(tensors)
    for name in _META:
        with on_meta():
            model = timm.create_model(name, num_classes=0)
        if name in (types := timm_names(renamed_by_timm(model, tensors) or {})):
            return types
    return []
