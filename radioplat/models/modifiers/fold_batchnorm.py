"""Fold BatchNorm into the convolution before it: fewer passes over memory in a frozen model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.fusion import fuse_conv_bn_eval


def fold_batch_norm(model: nn.Module, example: torch.Tensor) -> nn.Module:
    """Return a copy of ``model`` in which each BatchNorm that directly follows a convolution is folded into it.

    The pairs are found by running the model: a BatchNorm is folded if its input is the tensor that a convolution
    returned. If something else uses that tensor too, outputs would change; then ``model`` itself is returned.

    Args:
        model: in evaluation mode; called as ``model(example)``.
        example: an input, to see which layer feeds which.
    """
    return fold_pairs(model, example)[0]


@torch.no_grad()
def fold_pairs(
    model: nn.Module, example: torch.Tensor, say: Callable[[nn.Module], Sequence[torch.Tensor]] | None = None
) -> tuple[nn.Module, list[tuple[str, str]]]:
    """Fold as :func:`fold_batch_norm`; return also the names of the folded convolutions and BatchNorms.

    Args:
        say: returns the outputs that must not change; by default all tensors that ``model(example)`` returns.
    """
    every = following_norms(model, example)
    pairs = [(c, n) for c, n in every if sum(c == other for other, _ in every) == 1]
    if not pairs:
        return model, []
    folded = copy.deepcopy(model)
    for conv_name, norm_name in pairs:
        conv, norm = folded.get_submodule(conv_name), folded.get_submodule(norm_name)
        _replace(folded, conv_name, fuse_conv_bn_eval(conv, norm))
        drop_norm(folded, norm_name)
    say = say or (lambda one: _tensors(one(example)))
    both = zip(say(model), say(folded), strict=True)
    close = all(torch.allclose(a, b, rtol=1e-3, atol=1e-3 * float(a.abs().max())) for a, b in both)
    return (folded, pairs) if close else (model, [])


def drop_norm(model: nn.Module, name: str) -> None:
    """Replace the folded BatchNorm called ``name`` by the activation that it contains, or the identity."""
    _replace(model, name, _what_follows(model.get_submodule(name)))


@torch.no_grad()
def following_norms(model: nn.Module, example: torch.Tensor) -> list[tuple[str, str]]:
    """Return names of (convolution, BatchNorm that reads its output), found by calling ``model(example)``."""
    made: dict[int, tuple[str, torch.Tensor]] = {}
    pairs: list[tuple[str, str]] = []

    def watch(name: str):
        def hook(module: nn.Module, inputs: tuple, output: torch.Tensor) -> None:
            if isinstance(module, nn.Conv2d):
                made[id(output)] = (name, output)  # kept alive, so that no other tensor gets its id
            elif id(inputs[0]) in made:
                pairs.append((made[id(inputs[0])][0], name))

        return hook

    watched = [(n, m) for n, m in model.named_modules() if isinstance(m, (nn.Conv2d, _BatchNorm))]
    handles = [module.register_forward_hook(watch(name)) for name, module in watched]
    try:
        model(example)
    finally:
        for handle in handles:
            handle.remove()
    return pairs


def _what_follows(norm: nn.Module) -> nn.Module:
    """Return the activation inside timm's BatchNorm, or the identity for torch's, which has none."""
    parts = [part for part in (getattr(norm, "drop", None), getattr(norm, "act", None)) if part is not None]
    return nn.Sequential(*parts) if parts else nn.Identity()


def _replace(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, module)


def _tensors(output) -> list[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        return [output]
    return [t for t in (output.summary, output.spatial) if t is not None]
