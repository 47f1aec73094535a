"""Divide the parameters into optimizer groups by weight decay and learning-rate factor."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatch
from typing import Any

from torch import nn

from radioplat.errors import Problem, SpecError
from radioplat.optim.quantizer_scale_steps import RELATIVE
from radioplat.spec.schema.train import OptimConfig, OptimizerName

_BLOCK = re.compile(r"(?:^|\.)blocks\.(\d+)\.")
_FRONT = ("patch_generator.", "patch_embed.", "cls_token", "pos_embed", "reg_token", "norm_pre.")
_TOKENS = ("pos_embed", "cls_token.token", "cls_token", "reg_token", "dist_token")
SCALE = "_quantizer.scale"  # suffix of the names of quantizers' learned scales


def parameter_groups(module: nn.Module, config: OptimConfig) -> list[dict[str, Any]]:
    """Return optimizer groups of the trainable parameters: those with weight decay first, then by first occurrence.

    Besides ``params`` and ``weight_decay`` a group has the keys that :func:`radioplat.optim.optimizer.set_rates` reads:
    ``factor`` (its rate divided by the run's rate) and ``head`` (it is trained during ``head_warmup_epochs``); and
    ``adapt`` for LAMB. Learned scales of quantizers have no weight decay and no LAMB ratio; except for SGD they form
    groups with ``relative`` (see :mod:`radioplat.optim.quantizer_scale_steps`).

    Raises:
        SpecError: no parameter is trainable, or :func:`pattern_problems` yields a problem.
    """
    problems = list(pattern_problems(module, config))
    if problems:
        raise SpecError(*problems)
    depth, heads = _depth(module), _head_prefixes(module)
    by_kind: dict[tuple[bool, float, bool, bool], list[nn.Parameter]] = {}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            bare, decays = _bare(name), takes_decay(name, parameter, config)
            head = bare.startswith(heads)
            apart = head or bare.startswith("peers.")  # peers have no layer number in the student: no layer_decay
            factor = 1.0 if apart else config.layer_decay ** (depth - _layer(bare, depth))
            if head and config.projector_lr is not None:
                factor = config.projector_lr / config.rate
            factor *= next((f for pattern, f in config.lr_mults.items() if _matches(bare, pattern)), 1.0)
            relative = is_scale(name) and config.optim is not OptimizerName.sgd
            rests = head and (config.head_warmup_epochs or 0) > 0
            by_kind.setdefault((not decays, factor, rests, relative), []).append(parameter)
    if not by_kind:
        raise SpecError("everything is frozen, nothing is left to train", where="model.backbone.freeze_backbone")
    return [
        {
            "params": parameters,
            "weight_decay": 0.0 if plain else config.weight_decay,
            "factor": factor,
            "head": head,
            "adapt": not plain,
            RELATIVE: relative,
        }
        for (plain, factor, head, relative), parameters in sorted(by_kind.items(), key=lambda item: item[0][0])
    ]


def takes_decay(name: str, parameter: nn.Parameter, config: OptimConfig) -> bool:
    """Return True if weight decay, the regularizer and LAMB's ratio apply to the parameter.

    They do not apply to vectors, tokens, scales of quantizers and names that match ``skip_names``.
    """
    if parameter.ndim < 2 or name.endswith(_TOKENS) or is_scale(name):
        return False
    return not any(_matches(_bare(name), pattern) for pattern in config.skip_names)


def is_scale(name: str) -> bool:
    """Return True if ``name`` is that of a quantizer's learned scale."""
    return name.endswith(SCALE)


def pattern_problems(module: nn.Module, config: OptimConfig) -> Iterator[Problem]:
    """Yield settings of ``train.optim`` for parameters that ``module`` lacks; it may be on the meta device."""
    names = [_bare(name) for name, _ in module.named_parameters()]
    for pattern in config.lr_mults:
        if not any(_matches(name, pattern) for name in names):
            hint = f"Names are like {names[0]}." if names else ""
            yield Problem("no parameter of the student has such a name", f"train.optim.lr_mults.{pattern}", hint)
    if config.layer_decay != 1 and not _depth(module):
        message = "layer_decay needs a backbone with numbered blocks (blocks.0, blocks.1, ...)"
        yield Problem(message, "train.optim.layer_decay", "Give train.optim.lr_mults by name.")


def _matches(name: str, pattern: str) -> bool:
    return pattern in name or fnmatch(name, pattern)


def _bare(name: str) -> str:
    """Return a parameter's name without the prefix of the student."""
    return name.removeprefix("student.")


def _head_prefixes(module: nn.Module) -> tuple[str, ...]:
    """Return name prefixes of modules on top of the backbone: teachers' heads and classifiers, including timm's own."""
    backbone = getattr(getattr(module, "student", module), "backbone", None)
    own = tuple(f"backbone.model.{prefix}" for prefix in getattr(backbone, "classifier_prefix", ()))
    return ("heads.", "classifier.", *own)


def _depth(module: nn.Module) -> int:
    """Return the layer number of everything after the last block, which has the full rate; 0 without blocks."""
    names = (_bare(name) for name, _ in module.named_parameters())
    blocks = [int(m[1]) for name in names if name.startswith("backbone.") and (m := _BLOCK.search(name))]
    return max(blocks) + 2 if blocks else 0


def _layer(name: str, depth: int) -> int:
    """Return 0 for the embedding, i + 1 for block i, ``depth`` for all else, as in BEiT and MAE."""
    block = _BLOCK.search(name)
    if block:
        return int(block[1]) + 1
    inner = name.removeprefix("backbone.").removeprefix("model.")
    return 0 if inner.startswith(_FRONT) else depth
