"""The one place that knows DeepSpeed's insides: what its public API lacks or breaks (0.19.8), each with a test."""

from __future__ import annotations

import contextlib
import importlib
import os
import warnings
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from radioplat.distill.lamb import Layout

_BESIDE = "beside"  # a key of an optimizer's state that no optimizer uses


def init_distributed(backend: str, timeout: timedelta = timedelta(minutes=30)) -> None:
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
    deepspeed.init_distributed(backend, verbose=False, timeout=timeout)


def full_state(engine: Any, names: dict[str, nn.Parameter], moments: tuple[str, ...]) -> dict[str, torch.Tensor]:
    """fp32 weights and optimizer moments, whole, on the CPU; every rank must call this.

    Returns:
        ``<parameter>`` and ``<parameter>.<moment>`` for each trainable parameter; moments only after a first step.
    """
    from deepspeed.utils import safe_get_full_fp32_param

    optimizer, inner = engine.optimizer, _inner(engine.optimizer)
    _link_states(optimizer)
    stepped = any(moments[0] in state for state in inner.state.values()) if moments else False
    state: dict[str, torch.Tensor] = {}
    for name, parameter in names.items():
        whole = safe_get_full_fp32_param(parameter)
        state[name] = (parameter.detach() if whole is None else whole).float().cpu().clone()
        for moment in moments if stepped else ():
            value = _whole(inner, parameter, moment)
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
        _create_states(engine, inner, moments, steps)
    _link_states(optimizer)
    for name, parameter in names.items():
        partitioned = _partitioned(parameter)
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


def masters(engine: Any) -> list[torch.Tensor]:
    """The fp32 tensors that this rank's optimizer moves: whole parameters, or flat pieces of many.

    The same objects from the first step to the last.
    """
    flat = getattr(engine.optimizer, "fp32_partitioned_groups_flat", None)  # stage 3 hides them from the groups
    return list(flat or [p for group in _inner(engine.optimizer).param_groups for p in group["params"]])


def layouts(engine: Any) -> dict[torch.Tensor, Layout]:
    """Whose pieces the flat tensors among :func:`masters` hold; empty where parameters are whole."""
    optimizer = engine.optimizer
    if hasattr(optimizer, "fp32_partitioned_groups_flat"):
        groups, rank = optimizer.fp16_groups, dist.get_rank()
        return {
            flat: Layout(len(group), tuple(_pieces_stage_3(optimizer, group, rank)))
            for flat, group in zip(optimizer.fp32_partitioned_groups_flat, groups, strict=True)
        }
    groups = getattr(optimizer, "bf16_groups", None) or getattr(optimizer, "bit16_groups", None)
    if groups is None:
        return {}
    found = {}
    for flat, group in zip(masters(engine), groups, strict=True):
        # A parameter without a piece on this rank has no mapping.
        addresses = [(i, p._hp_mapping.hp_fragment_address) for i, p in enumerate(group) if p._hp_mapping is not None]
        found[flat] = Layout(len(group), tuple((i, address.start, address.numel) for i, address in addresses))
    return found


def _pieces_stage_3(optimizer: Any, group: list[nn.Parameter], rank: int) -> Iterator[tuple[int, int, int]]:
    """The last rank's pieces are padded with what happened to be in memory: that is left out."""
    for i, parameter in enumerate(group):
        _, start, size = optimizer.grad_position[optimizer.get_param_id(parameter)]
        real = min(size, parameter.ds_numel - rank * size)
        if real > 0:
            yield i, start, real


def gather_beside(engine: Any, names: dict[str, nn.Parameter], values: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """``values``, which lie beside :func:`masters` in their shapes, by parameter, whole, fp32, on the CPU.

    Every rank must call this.
    """
    with _beside(engine, values) as inner:
        return {name: _whole(inner, p, _BESIDE).float().cpu().clone() for name, p in names.items()}


def scatter_beside(
    engine: Any, names: dict[str, nn.Parameter], values: list[torch.Tensor], state: dict[str, torch.Tensor]
) -> None:
    """Inverse of :func:`gather_beside`, into ``values``; parameters that ``state`` lacks are left as they are."""
    from deepspeed.utils import safe_set_full_optimizer_state

    with _beside(engine, values) as inner:
        for name, parameter in names.items():
            if name not in state:
                continue
            if _partitioned(parameter):
                safe_set_full_optimizer_state(parameter, state[name].to(parameter.device), _BESIDE)
            else:
                inner.state[parameter][_BESIDE].copy_(state[name])


@contextlib.contextmanager
def _beside(engine: Any, values: list[torch.Tensor]) -> Iterator[torch.optim.Optimizer]:
    """For a while ``values`` are a moment of the optimizer: so DeepSpeed's own code gathers and cuts them."""
    inner = _inner(engine.optimizer)
    for tensor, value in zip(masters(engine), values, strict=True):
        inner.state[tensor][_BESIDE] = value
    _link_states(engine.optimizer)
    try:
        yield inner
    finally:
        for tensor in masters(engine):
            del inner.state[tensor][_BESIDE]
        _link_states(engine.optimizer)


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


def _partitioned(parameter: nn.Parameter) -> bool:
    return hasattr(parameter, "ds_id") or hasattr(parameter, "_hp_mapping")


def _whole(inner: torch.optim.Optimizer, parameter: nn.Parameter, moment: str) -> torch.Tensor | None:
    """One moment of a parameter; None where a parameter that is whole here has none."""
    from deepspeed.utils import safe_get_full_optimizer_state

    if _partitioned(parameter):
        return safe_get_full_optimizer_state(parameter, moment)
    return inner.state[parameter].get(moment)


def _link_states(optimizer: Any) -> None:
    """With several parameter groups ZeRO 1 and 2 link only what existed at the first step; link again."""
    if hasattr(optimizer, "_hp_optimizer_states_linked") and _inner(optimizer).state:
        optimizer._hp_optimizer_states_linked = False
        optimizer._lazy_init_hp_params_optimizer_state()


def _create_states(engine: Any, inner: torch.optim.Optimizer, moments: tuple[str, ...], steps: int) -> None:
    """The states that the first step would make, with ``steps`` behind them."""
    for tensor in masters(engine):
        inner.state[tensor] = {moment: torch.zeros_like(tensor) for moment in moments}
        if moments[0] == "exp_avg":
            inner.state[tensor]["step"] = torch.tensor(float(steps))
