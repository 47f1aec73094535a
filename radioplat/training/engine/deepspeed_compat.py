"""Access DeepSpeed internals (0.19.8) where its public API has gaps or errors; each workaround has a test.

Only this module and :mod:`radioplat.training.engine.zero_gather` use DeepSpeed internals.
"""

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

from radioplat.optim.lamb import Layout
from radioplat.optim.optimizer import create_state
from radioplat.training.engine import zero_gather
from radioplat.training.engine.engine import LOSS_SCALE, WEIGHTS
from radioplat.training.engine.whole_layout import Piece
from radioplat.training.engine.whole_tensors import Values

_TEMPORARY = "radioplat_temporary"  # key in the optimizer state; no optimizer uses it
_SCALER_FIELDS = ("cur_scale", "cur_hysteresis", "last_overflow_iter", "cur_iter")


def init_distributed(backend: str, timeout: timedelta = timedelta(minutes=30)) -> None:
    """Join the process group that the environment (RANK, WORLD_SIZE, MASTER_ADDR, ...) describes.

    On a CPU, DeepSpeed would first compile a shared-memory extension, which takes 50 s and fails without a compiler;
    gloo is used instead.
    """
    os.environ.setdefault("DS_ACCELERATOR", "cuda" if backend == "nccl" else "cpu")  # else it guesses and warns
    # DeepSpeed's collectives use names that torch has deprecated; a warning for each call would not help users.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
    import deepspeed

    comm: Any = importlib.import_module("deepspeed.comm.torch")
    comm.build_shm_op = lambda: None
    # ZeRO 1 in bf16 prints memory reports at any log level, and runs the garbage collector for each (0.7 s).
    optimizer: Any = importlib.import_module("deepspeed.runtime.bf16_optimizer")
    optimizer.see_memory_usage = lambda *_, **__: None
    _import_muon()
    deepspeed.init_distributed(backend, verbose=False, timeout=timeout)


def _import_muon() -> None:
    """Import DeepSpeed's optimizer Muon without ``torch.compile``.

    Engines with ZeRO or bf16 import it, whatever their optimizer is, and the functions that it compiles then import
    inductor: two to five seconds of a core at each start of a worker. No run of ours calls them.
    """
    compiler: Any = importlib.import_module("deepspeed.runtime.compiler")
    compiled = compiler.compile
    compiler.compile = lambda: lambda function: function
    try:
        with contextlib.suppress(ImportError):  # of another version
            importlib.import_module("deepspeed.runtime.zero.muon.muon_optimizer")
    finally:
        compiler.compile = compiled


def values(engine: Any, moments: tuple[str, ...]) -> dict[str, Values]:
    """Return the tensors that this rank's optimizer updates, and after a first step its moments."""
    inner, tensors = _inner(engine.optimizer), masters(engine)
    stepped = any(moments[0] in state for state in inner.state.values()) if moments else False
    kinds: dict[str, Values] = {WEIGHTS: tensors}
    return kinds | {m: [inner.state[tensor].get(m) for tensor in tensors] for m in (moments if stepped else ())}


def loss_scale(engine: Any) -> dict[str, torch.Tensor]:
    """Return :data:`LOSS_SCALE` of an fp16 run, float64 ``[4]``; {} otherwise."""
    if (scaler := moving_scaler(engine)) is None:
        return {}
    return {LOSS_SCALE: torch.tensor([getattr(scaler, field) for field in _SCALER_FIELDS], dtype=torch.float64)}


def pieces(engine: Any, names: dict[str, nn.Parameter]) -> dict[str, Piece | None]:
    """Return where in :func:`masters` this rank's piece of each parameter is, or the whole one if it is not sharded."""
    mine, flats = zero_gather.pieces(engine), {tensor: i for i, tensor in enumerate(masters(engine))}
    return {
        name: mine[parameter] if _partitioned(parameter) else Piece(flats[parameter], 0, 0, parameter.numel())
        for name, parameter in names.items()
    }


def moving_scaler(engine: Any) -> Any | None:
    """Return the dynamic loss scaler of an fp16 run; None otherwise."""
    scaler = getattr(engine.optimizer, "loss_scaler", None)
    return scaler if getattr(scaler, "dynamic", False) else None


def load_full_state(
    engine: Any, names: dict[str, nn.Parameter], moments: tuple[str, ...], state: dict[str, torch.Tensor], steps: int
) -> None:
    """Load weights and moments from a checkpoint, at any world size and ZeRO stage, with or without CPU offload.

    The loss scale is restored only in fp16. The module's weights must already have the same values: setting the fp32
    master weights does not update bf16 weights.
    """
    optimizer, inner = engine.optimizer, _inner(engine.optimizer)
    if steps and moments:
        _create_states(engine, inner, moments, steps)
    _link_states(optimizer)
    if (scaler := moving_scaler(engine)) is not None and LOSS_SCALE in state:
        scale, *counts = state[LOSS_SCALE].tolist()
        for field, value in zip(_SCALER_FIELDS, (scale, *map(int, counts)), strict=True):
            setattr(scaler, field, value)
    for name, parameter in names.items():
        partitioned = _partitioned(parameter)
        if partitioned:
            _set(parameter, state[name])
        for moment in moments:
            value = state.get(f"{name}.{moment}")
            if value is None:
                continue
            if partitioned:
                _set(parameter, value, moment)
            else:
                inner.state[parameter][moment].copy_(value)


def masters(engine: Any) -> list[torch.Tensor]:
    """Return the fp32 tensors that this rank's optimizer updates: whole parameters, or flat tensors of several pieces.

    The objects stay the same during the whole run.
    """
    flat = getattr(engine.optimizer, "fp32_partitioned_groups_flat", None)  # stage 3 does not list them in the groups
    return list(flat or [p for group in _inner(engine.optimizer).param_groups for p in group["params"]])


def layouts(engine: Any) -> dict[torch.Tensor, Layout]:
    """Return, for each flat tensor of :func:`masters`, the parameters whose pieces it contains.

    Empty if parameters are not partitioned.
    """
    mine = zero_gather.pieces(engine)
    return {
        flat: Layout(len(group), tuple((i, p.start, p.size) for i, each in enumerate(group) if (p := mine[each])))
        for flat, group in zip(masters(engine), zero_gather.groups(engine), strict=False)
    }


def copy_values(
    engine: Any, names: dict[str, nn.Parameter], values: list[torch.Tensor], into: dict[str, torch.Tensor]
) -> None:
    """Copy ``values``, tensors with the shapes of :func:`masters`, into the whole tensors of ``into``, on every rank.

    Every rank must call it.
    """
    partitioned = {name: parameter for name, parameter in names.items() if _partitioned(parameter)}
    for part in zero_gather.whole(engine, partitioned, values):
        torch._foreach_copy_([into[name] for name in part], list(part.values()))
    of = dict(zip(masters(engine), values, strict=True))
    if whole := {name: of[parameter] for name, parameter in names.items() if name not in partitioned}:
        torch._foreach_copy_([into[name] for name in whole], list(whole.values()))


def scatter_values(
    engine: Any, names: dict[str, nn.Parameter], values: list[torch.Tensor], state: dict[str, torch.Tensor]
) -> None:
    """Copy whole tensors of ``state`` into ``values`` (inverse of :func:`copy_values`); others are unchanged."""
    with _as_moment(engine, values) as inner:
        for name, parameter in names.items():
            if name not in state:
                continue
            if _partitioned(parameter):
                _set(parameter, state[name], _TEMPORARY)
            else:
                inner.state[parameter][_TEMPORARY].copy_(state[name])


@contextlib.contextmanager
def _as_moment(engine: Any, values: list[torch.Tensor]) -> Iterator[torch.optim.Optimizer]:
    """During the block, register ``values`` as an optimizer moment, so that DeepSpeed gathers and splits them."""
    inner = _inner(engine.optimizer)
    for tensor, value in zip(masters(engine), values, strict=True):
        inner.state[tensor][_TEMPORARY] = value
    _link_states(engine.optimizer)
    try:
        yield inner
    finally:
        for tensor in masters(engine):
            del inner.state[tensor][_TEMPORARY]
        _link_states(engine.optimizer)


def discard_gradients(engine: Any) -> None:
    """Discard the accumulated gradients of this step, like DeepSpeed itself on an fp16 overflow."""
    optimizer = engine.optimizer
    if hasattr(optimizer, "clear_hp_grads"):
        optimizer.clear_hp_grads()
        optimizer.clear_lp_grads()
        return
    engine.zero_grad()
    optimizer.zero_grad(set_to_none=True)
    for name in ("averaged_gradients", "all_grad_tensors"):  # sums of earlier micro-batches, stored apart from `grad`
        if hasattr(optimizer, name):
            setattr(optimizer, name, {})
    if hasattr(optimizer, "_release_preflattened_grad_buffers"):
        optimizer._release_preflattened_grad_buffers()
    if hasattr(optimizer, "reset_cpu_buffers"):  # with offload, the next micro-batch must start new sums
        optimizer.reset_cpu_buffers()
        optimizer.local_overflow = False
        optimizer.micro_step_id = 0 if hasattr(optimizer, "fp32_partitioned_groups_flat") else -1


def take_over_gradients(engine: Any) -> list[tuple[list[nn.Parameter], torch.Tensor]]:
    """At stage 0 or 1: keep DeepSpeed from collecting gradients.

    Returns:
        The parameters of each optimizer group, and a flat fp32 tensor of zeros in which their gradients follow each
        other in this order. It may be longer.
    """
    optimizer = engine.optimizer
    for hook in getattr(optimizer, "_grad_acc_hooks", ()):
        hook.remove()
    if hasattr(optimizer, "fp32_groups_gradients_flat"):
        return list(zip(optimizer.bf16_groups, optimizer.fp32_groups_gradients_flat, strict=True))
    flats = getattr(optimizer, "bit16_groups_flat", None)
    if flats is not None:
        return [(group, torch.zeros_like(flat)) for group, flat in zip(zero_gather.groups(engine), flats, strict=True)]
    groups = [group["params"] for group in optimizer.param_groups]
    return [(group, group[0].new_zeros(sum(p.numel() for p in group))) for group in groups]


def update(engine: Any, gradients: list[torch.Tensor]) -> None:
    """Update the weights by whole gradients in the tensors that :func:`take_over_gradients` returned."""
    optimizer = engine.optimizer
    if hasattr(optimizer, "fp32_groups_has_gradients"):
        for present in optimizer.fp32_groups_has_gradients:
            present[:] = [True] * len(present)
    elif hasattr(optimizer, "averaged_gradients"):
        for i, gradient in enumerate(gradients):
            size = int(optimizer.partition_size[i])
            optimizer.averaged_gradients[i] = [gradient.narrow(0, dist.get_rank() * size, size)]
    optimizer.step()


def _inner(optimizer: Any) -> torch.optim.Optimizer:
    return getattr(optimizer, "optimizer", optimizer)


def _partitioned(parameter: nn.Parameter) -> bool:
    return hasattr(parameter, "ds_id") or hasattr(parameter, "_hp_mapping")


def _set(parameter: nn.Parameter, value: torch.Tensor, moment: str | None = None) -> None:
    """Write this rank's pieces of ``value``, a whole fp32 weight or moment, into the optimizer's tensors."""
    from deepspeed import utils

    value = value.to(parameter.device)
    if not hasattr(parameter, "ds_id"):
        if moment is None:
            utils.safe_set_full_fp32_param(parameter, value)
        else:
            utils.safe_set_full_optimizer_state(parameter, value, moment)
        return
    # At stage 3, DeepSpeed's function for whole values fails if a parameter's size is not a multiple of the ranks.
    size, rank = parameter.partition_numel(), dist.get_rank()
    piece, mine = torch.zeros(size, device=value.device), value.flatten()[rank * size : (rank + 1) * size]
    piece[: mine.numel()] = mine
    if moment is None:
        utils.safe_set_local_fp32_param(parameter, piece)
    else:
        utils.safe_set_local_optimizer_state(parameter, piece, moment)


def _link_states(optimizer: Any) -> None:
    """Link all optimizer states again: with several parameter groups, ZeRO 1 and 2 link only those of step 1."""
    if hasattr(optimizer, "_hp_optimizer_states_linked") and _inner(optimizer).state:
        optimizer._hp_optimizer_states_linked = False
        optimizer._lazy_init_hp_params_optimizer_state()


def _create_states(engine: Any, inner: torch.optim.Optimizer, moments: tuple[str, ...], steps: int) -> None:
    """Create the optimizer states that the first step would create, with zero moments and step count ``steps``."""
    for tensor in masters(engine):
        create_state(inner, tensor, moments, steps)
