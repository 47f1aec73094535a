"""Parameter groups and the learning-rate schedule."""

from __future__ import annotations

import math
from fnmatch import fnmatch

import torch
from torch import nn

from radioplat.errors import SpecError
from radioplat.spec.train import OptimConfig, OptimizerName, Policy

MOMENTS = {
    OptimizerName.adamw: ("exp_avg", "exp_avg_sq"),
    OptimizerName.adam: ("exp_avg", "exp_avg_sq"),
    OptimizerName.sgd: ("momentum_buffer",),
}


def build_optimizer(module: nn.Module, config: OptimConfig) -> torch.optim.Optimizer:
    """The optimizer over the trainable parameters; vectors (biases, norms, tokens) and ``skip_names`` get no decay.

    Raises:
        SpecError: no parameter is trainable.
    """
    decayed, plain = [], []
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            skip = parameter.ndim < 2 or name.endswith(("pos_embed", "cls_token.token"))
            skip = skip or any(pattern in name or fnmatch(name, pattern) for pattern in config.skip_names)
            (plain if skip else decayed).append(parameter)
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    groups = [group for group in groups if group["params"]]
    if not groups:
        raise SpecError("everything is frozen, nothing is left to train", where="model.backbone.freeze_backbone")
    if config.optim is OptimizerName.sgd:
        return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum)
    kind = torch.optim.AdamW if config.optim is OptimizerName.adamw else torch.optim.Adam
    return kind(groups, lr=config.lr, betas=(config.betas[0], config.betas[1]))


def learning_rate(config: OptimConfig, step: int, total_steps: int, steps_per_epoch: int) -> float:
    """The rate of global step ``step`` (from 0): a pure function, so a resumed run has the quiet run's schedule.

    Linear warm-up over ``warmup_epochs``, then ``policy``; linear and cosine end at ``min_lr`` (default 0).
    With ``sched_on_updates: false`` the rate changes only between epochs.
    """
    if not config.sched_on_updates:
        step = step // steps_per_epoch * steps_per_epoch
    warmup = round(config.warmup_epochs * steps_per_epoch)
    if step < warmup:
        return config.lr * (step + 1) / warmup
    params = config.policy_params
    if config.policy is Policy.step:
        period = max(1, round(float(params.get("step_size", 30)) * steps_per_epoch))
        return config.lr * float(params.get("gamma", 0.1)) ** (step // period)
    if config.policy is Policy.multistep:
        passed = sum(step >= float(m) * steps_per_epoch for m in params.get("milestones", []))
        return config.lr * float(params.get("gamma", 0.1)) ** passed
    share = min(1.0, (step - warmup) / max(1, total_steps - warmup))
    low = float(params.get("min_lr", 0.0))
    curve = 1 - share if config.policy is Policy.linear else (1 + math.cos(math.pi * share)) / 2
    return low + (config.lr - low) * curve
