"""The one place that knows DeepSpeed's insides: what its public API lacks or breaks (0.19.8), each with a test."""

from __future__ import annotations

import importlib
import os
import warnings
from typing import Any

import torch
from torch import nn


def init_distributed(backend: str) -> None:
    """Join the process group that the environment (RANK, WORLD_SIZE, MASTER_ADDR, ...) describes.

    On a CPU DeepSpeed would compile a shared-memory extension first (50 s, and fails without a compiler); gloo serves.
    """
    os.environ.setdefault("DS_ACCELERATOR", "cuda" if backend == "nccl" else "cpu")  # else it guesses, and says so
    # Its collectives use names that torch has renamed; one warning a call helps no user of ours.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
    import deepspeed

    importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None
    # Stage 1 in bf16 prints memory reports whatever the log level, and collects garbage for each (0.7 s a time).
    importlib.import_module("deepspeed.runtime.bf16_optimizer").see_memory_usage = lambda *_, **__: None
    deepspeed.init_distributed(backend, verbose=False)


def full_state(engine: Any, names: dict[str, nn.Parameter], moments: tuple[str, ...]) -> dict[str, torch.Tensor]:
    """fp32 weights and optimizer moments, whole, on the CPU; every rank must call this.

    Returns:
        ``<parameter>`` and ``<parameter>.<moment>`` for each trainable parameter; moments only after a first step.
    """
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    optimizer, inner = engine.optimizer, _inner(engine.optimizer)
    _link_states(optimizer)
    stepped = any(moments[0] in state for state in inner.state.values()) if moments else False
    state: dict[str, torch.Tensor] = {}
    for name, parameter in names.items():
        whole = safe_get_full_fp32_param(parameter)
        state[name] = (parameter.detach() if whole is None else whole).float().cpu().clone()
        for moment in moments if stepped else ():
            if whole is None:
                value = inner.state[parameter].get(moment)
            else:
                value = safe_get_full_optimizer_state(parameter, moment)
            if value is not None:
                state[f"{name}.{moment}"] = value.float().cpu().clone()
    return state


def load_full_state(
    engine: Any, names: dict[str, nn.Parameter], moments: tuple[str, ...], state: dict[str, torch.Tensor], steps: int
) -> None:
    """Inverse of :func:`full_state`, at any world size and stage.

    The module's own weights must already hold the same values: setting the fp32 ones refreshes no bf16 weight.
    """
    from deepspeed.utils import safe_set_full_fp32_param, safe_set_full_optimizer_state

    optimizer, inner = engine.optimizer, _inner(engine.optimizer)
    if steps and moments:
        _create_states(optimizer, inner, moments, steps)
    _link_states(optimizer)
    for name, parameter in names.items():
        partitioned = hasattr(parameter, "ds_id") or hasattr(parameter, "_hp_mapping")
        device = parameter.device
        if partitioned:
            safe_set_full_fp32_param(parameter, state[name].to(device))
        for moment in moments:
            value = state.get(f"{name}.{moment}")
            if value is None:
                continue
            if partitioned:
                safe_set_full_optimizer_state(parameter, value.to(device), moment)
            else:
                inner.state[parameter][moment].copy_(value)


def discard_gradients(engine: Any) -> None:
    """Forget what the micro-batches of this step have accumulated, as DeepSpeed itself does on an fp16 overflow."""
    optimizer = engine.optimizer
    if hasattr(optimizer, "clear_hp_grads"):
        optimizer.clear_hp_grads()
        optimizer.clear_lp_grads()
        return
    engine.zero_grad()
    optimizer.zero_grad(set_to_none=True)
    for name in ("averaged_gradients", "all_grad_tensors"):  # sums of earlier micro-batches, kept apart from `grad`
        if hasattr(optimizer, name):
            setattr(optimizer, name, {})
    if hasattr(optimizer, "_release_preflattened_grad_buffers"):
        optimizer._release_preflattened_grad_buffers()


def _inner(optimizer: Any) -> torch.optim.Optimizer:
    return getattr(optimizer, "optimizer", optimizer)


def _link_states(optimizer: Any) -> None:
    """With several parameter groups ZeRO 1 and 2 link only what existed at the first step; link again."""
    if hasattr(optimizer, "_hp_optimizer_states_linked") and _inner(optimizer).state:
        optimizer._hp_optimizer_states_linked = False
        optimizer._lazy_init_hp_params_optimizer_state()


def _create_states(optimizer: Any, inner: torch.optim.Optimizer, moments: tuple[str, ...], steps: int) -> None:
    """The states that the first step would make, with ``steps`` behind them."""
    flat = getattr(optimizer, "fp32_partitioned_groups_flat", None)  # stage 3 hides its partitions from the groups
    for tensor in flat or [p for group in inner.param_groups for p in group["params"]]:
        inner.state[tensor] = {moment: torch.zeros_like(tensor) for moment in moments}
        if moments[0] == "exp_avg":
            inner.state[tensor]["step"] = torch.tensor(float(steps))
