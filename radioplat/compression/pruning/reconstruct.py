"""Weights of layers that lost inputs, fitted again so that outputs are as they were before (He et al. 2017, section 3).

What a removed input gave a layer can partly be computed from the inputs that stay, because channels are correlated. In
the model's order each such layer gets the weights with the least mean squared difference between its outputs in the
pruned model and those in the model before pruning (ridge regression, so errors of earlier layers are made up for, too).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from radioplat.compression.pruning.rebuild import original_name
from radioplat.models.student.student import Student

POSITIONS = 32  # of a map or a sequence that are read, for each image
RIDGE = 1e-3  # as a share of the mean variance of the inputs


class _Reached(Exception):
    """The layer has its inputs; what comes behind it is not computed."""


@torch.no_grad()
def reconstruct(
    before: Student, small: Student, images: torch.Tensor, batch: int, kept: Mapping[str, list[int]] | None = None
) -> list[str]:
    """Fit linear layers and 1 x 1 convolutions of ``small`` that lost inputs but no outputs, in place.

    Args:
        before: the student that was pruned.
        images: uint8 ``[N, 3, H, W]``.
        batch: images that are computed at once.
        kept: children that stay of the containers in the backbone that lost blocks.

    Returns:
        The names of the layers, in the order in which they run.
    """
    modules = dict(before.backbone.named_modules())
    whole: dict[str, nn.Module] = {}
    for name, layer in small.backbone.named_modules():
        twin = modules.get(original_name(name, dict(kept or {})))
        if twin is not None and _lost_inputs(twin, layer):
            whole[name] = twin
    outputs: dict[str, list[torch.Tensor]] = {}  # by name, in the order of execution
    hooks = [
        whole[name].register_forward_hook(
            lambda layer, _, output, name=name: outputs.setdefault(name, []).append(_rows(output, layer))
        )
        for name in whole
    ]
    try:
        for part in images.split(batch):
            before(part)
    finally:
        for hook in hooks:
            hook.remove()
    for name in outputs:
        layer = small.backbone.get_submodule(name)
        _fit(layer, _inputs(small, layer, images, batch), torch.cat(outputs[name]))
    return list(outputs)


def _inputs(model: nn.Module, layer: nn.Module, images: torch.Tensor, batch: int) -> torch.Tensor:
    """Return what ``layer`` reads, ``[N, inputs]``."""
    parts: list[torch.Tensor] = []

    def read(layer: nn.Module, given: tuple) -> None:
        """Keep the rows, and stop."""
        parts.append(_rows(given[0], layer))
        raise _Reached

    hook = layer.register_forward_pre_hook(read)
    try:
        for part in images.split(batch):
            try:
                model(part)
            except _Reached:
                continue
    finally:
        hook.remove()
    return torch.cat(parts)


def _fit(layer: nn.Module, inputs: torch.Tensor, outputs: torch.Tensor) -> None:
    inputs, outputs = inputs.double(), outputs.double()
    if layer.bias is not None:
        means = inputs.mean(0), outputs.mean(0)
        inputs, outputs = inputs - means[0], outputs - means[1]
    products = inputs.T @ inputs / len(inputs)
    products.diagonal().add_(RIDGE * products.diagonal().mean().clamp_min(torch.finfo(torch.float32).tiny))
    fitted = torch.linalg.solve(products, inputs.T @ outputs / len(inputs)).T
    layer.weight.copy_(fitted.reshape(layer.weight.shape))
    if layer.bias is not None:
        layer.bias.copy_(means[1] - fitted @ means[0])


def _lost_inputs(whole: Any, layer: Any) -> bool:
    if isinstance(layer, nn.Conv2d):
        if layer.kernel_size != (1, 1) or layer.groups != 1 or layer.stride != (1, 1):
            return False
    elif not isinstance(layer, nn.Linear):
        return False
    if type(whole) is not type(layer):
        return False
    old, new = whole.weight.shape, layer.weight.shape
    return old[0] == new[0] and old[1] > new[1]


def _rows(given: torch.Tensor, layer: nn.Module) -> torch.Tensor:
    """Return inputs or outputs at some positions of each image, ``[N, channels]``."""
    if isinstance(layer, nn.Conv2d):
        given = given.flatten(2).transpose(1, 2)
    given = given.reshape(len(given), -1, given.shape[-1]) if given.ndim > 2 else given[:, None]
    step = max(1, given.shape[1] // POSITIONS)
    return given[:, ::step].flatten(0, 1).float()
