"""The optimizer and the learning-rate schedule."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from radioplat.optim.lamb import Lamb
from radioplat.optim.parameter_groups import parameter_groups
from radioplat.optim.quantizer_scale_steps import step_relatively
from radioplat.spec.schema.train import OptimConfig, OptimizerName, Policy

MOMENTS = {
    OptimizerName.adamw: ("exp_avg", "exp_avg_sq"),
    OptimizerName.adam: ("exp_avg", "exp_avg_sq"),
    OptimizerName.sgd: ("momentum_buffer",),
    OptimizerName.lamb: ("exp_avg", "exp_avg_sq"),
    OptimizerName.fusedlamb: ("exp_avg", "exp_avg_sq"),
}
_ADAM = {OptimizerName.adamw: torch.optim.AdamW, OptimizerName.adam: torch.optim.Adam}
# From the share of the run that is done to the share of the rate that is left.
_CURVES: dict[Policy, Callable[[float], float]] = {
    Policy.linear: lambda share: 1 - share,
    Policy.cosine: lambda share: (1 + math.cos(math.pi * share)) / 2,
}


def build_optimizer(module: nn.Module, config: OptimConfig, fused: bool = True) -> torch.optim.Optimizer:
    """Return the optimizer of the trainable parameters; see :func:`parameter_groups`.

    ``adamw`` decays the weights directly; ``adam`` and ``sgd`` (momentum without Nesterov) add the decay to the
    gradient, as in torch. ``fusedlamb`` is the same as ``lamb``, so results are the same on every device. Adam's update
    is one kernel if ``fused`` and all parameters are on a GPU; the engine must not move its tensors to the host then.

    Raises:
        SpecError: no parameter is trainable, or the config sets a rate for parameters that do not exist.
    """
    groups = parameter_groups(module, config)
    fused = fused and all(parameter.is_cuda for group in groups for parameter in group["params"])
    optimizer = _optimizer(groups, config, fused)
    step_relatively(optimizer)
    return optimizer


def _optimizer(groups: list[dict[str, Any]], config: OptimConfig, fused: bool) -> torch.optim.Optimizer:
    betas = (config.betas[0], config.betas[1])
    if config.optim is OptimizerName.sgd:
        return torch.optim.SGD(groups, lr=config.rate, momentum=config.momentum)
    if config.optim in (OptimizerName.lamb, OptimizerName.fusedlamb):
        return Lamb(groups, lr=config.rate, betas=betas)
    return _ADAM[config.optim](groups, lr=config.rate, betas=betas, fused=fused or None)


def create_state(optimizer: torch.optim.Optimizer, tensor: torch.Tensor, moments: tuple[str, ...], steps: int) -> None:
    """Create the state of ``tensor`` that the first step would create, with zero moments and the count ``steps``."""
    state: dict[str, torch.Tensor] = {moment: torch.zeros_like(tensor) for moment in moments}
    if "exp_avg" in moments:
        fused = optimizer.param_groups[0].get("fused")  # it reads the count on the device
        state["step"] = torch.tensor(float(steps), device=tensor.device if fused else None)
    optimizer.state[tensor] = state


def set_rates(
    groups: list[dict[str, Any]], config: OptimConfig, step: int, total_steps: int, steps_per_epoch: int
) -> float:
    """Set the learning rate of every group for global step ``step``; return the rate of groups with ``factor`` 1.

    For ``head_warmup_epochs`` the backbone's rate is 0; then it warms up under the same schedule.
    """
    rate = learning_rate(config, step, total_steps, steps_per_epoch)
    body = rate
    held = round((config.head_warmup_epochs or 0) * steps_per_epoch)
    if held:
        step = _counted(config, step, steps_per_epoch)
        body = 0.0 if step < held else min(rate, _warm_up(config, step - held, steps_per_epoch))
    for group in groups:
        group["lr"] = (rate if group["head"] else body) * group["factor"]
    return rate


def learning_rate(config: OptimConfig, step: int, total_steps: int, steps_per_epoch: int) -> float:
    """Return the learning rate at global step ``step`` (from 0); a pure function, so a resumed run has the same rates.

    Linear warm-up over ``warmup_epochs``, then ``policy``; linear and cosine end at ``min_lr`` (default 0).
    ``soft_start_annealing`` is TAO's policy: the rate increases geometrically from ``min_lr`` (default ``lr`` / 100) to
    ``lr`` over the fraction ``soft_start`` of the run, stays there, and decreases geometrically to ``min_lr`` from the
    fraction ``annealing`` of the run on. With ``sched_on_updates: false`` the rate changes only between epochs.
    """
    step = _counted(config, step, steps_per_epoch)
    warmup = round(config.warm_up * steps_per_epoch)
    if step < warmup:
        return _warm_up(config, step, steps_per_epoch)
    params = config.policy_params
    if config.policy is Policy.step:
        period = max(1, round(float(params.get("step_size", 30)) * steps_per_epoch))
        return config.rate * float(params.get("gamma", 0.1)) ** (step // period)
    if config.policy is Policy.multistep:
        passed = sum(step >= float(m) * steps_per_epoch for m in params.get("milestones", []))
        return config.rate * float(params.get("gamma", 0.1)) ** passed
    share = min(1.0, (step - warmup) / max(1, total_steps - warmup))
    if config.policy is Policy.soft_start_annealing:
        return _soft_start_annealing(config, share)
    low = float(params.get("min_lr", 0.0))
    return low + (config.rate - low) * _CURVES[config.policy](share)


def _soft_start_annealing(config: OptimConfig, share: float) -> float:
    params = config.policy_params
    start, annealing = float(params.get("soft_start", 0.1)), float(params.get("annealing", 0.7))
    low = float(params.get("min_lr", config.rate / 100))
    climbed = 1.0
    if share < start:
        climbed = share / start
    elif share > annealing:
        climbed = (1 - share) / (1 - annealing)
    return low * (config.rate / low) ** climbed


def _counted(config: OptimConfig, step: int, steps_per_epoch: int) -> int:
    """Return the step at which the schedule is evaluated: the first of the epoch if ``sched_on_updates`` is false."""
    return step if config.sched_on_updates else step // steps_per_epoch * steps_per_epoch


def _warm_up(config: OptimConfig, step: int, steps_per_epoch: int) -> float:
    """Return the rate at ``step`` steps after the start of a linear warm-up; at most ``lr``."""
    warmup = round(config.warm_up * steps_per_epoch)
    return config.rate * min(1.0, (step + 1) / warmup) if warmup else config.rate
