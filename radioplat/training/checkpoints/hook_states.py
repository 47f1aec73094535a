"""Convert between states of step hooks and the files of a checkpoint.

States of built-in hooks are stored where earlier versions stored them: in ``state.json``, in the optimizer file, or in
separate files. States of users' hooks share the file :data:`HOOKS`: tensors as ``<hook>.<name>``, other values as JSON
in its metadata.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from radioplat.models.weights.model_format import EMA_FILE, read_average
from radioplat.training.checkpoints.checkpoint import HOOKS, HOOKS_KEY, LOSSES, read_losses
from radioplat.training.checkpoints.run_state import RunState

States = dict[str, dict[str, Any]]  # state_dict by the hook's name
# Hooks whose state is fields of RunState.
_FIELDS = {
    "non_finite": ("quarantined",),
    "loss_spikes": ("recent_losses", "rollbacks"),
    "teacher_cost": ("teacher_cost",),
    "dealing": ("micro_batch_seconds",),
}
EMA = "ema"
_FILES = {"losses": LOSSES, EMA: EMA_FILE}
BATCHNORM, TARGET_NORM = "batchnorm", "target_norm"  # stored in the student's file; stored in the optimizer file
_BUILT_IN = {*_FIELDS, *_FILES, BATCHNORM, TARGET_NORM}


def update_run_state(state: RunState, states: States) -> None:
    """Set the fields of ``state`` (``state.json``) that are states of hooks."""
    for hook, names in _FIELDS.items():
        for name in names:
            if hook in states:
                setattr(state, name, states[hook][name])


def files_of(states: States) -> dict[str, tuple[dict[str, torch.Tensor], dict[str, str]]]:
    """Return tensors and metadata of the files that contain only states of hooks, by file name."""
    files: dict[str, tuple[dict[str, torch.Tensor], dict[str, str]]] = {
        file: (states[hook], {}) for hook, file in _FILES.items() if states.get(hook)
    }
    own = {hook: state for hook, state in states.items() if hook not in _BUILT_IN}
    if own:
        tensors = {f"{hook}.{k}": v for hook, state in own.items() for k, v in state.items() if torch.is_tensor(v)}
        values = {hook: {k: v for k, v in state.items() if not torch.is_tensor(v)} for hook, state in own.items()}
        files[HOOKS] = ({k: v.detach().cpu().clone() for k, v in tensors.items()}, {HOOKS_KEY: json.dumps(values)})
    return files


def read_states(folder: Path, state: RunState, moments: Mapping[str, torch.Tensor], hooks: Collection[str]) -> States:
    """Return the states of hooks in the checkpoint at ``folder``; an earlier version may have written it.

    Args:
        state: its ``state.json``.
        moments: the tensors of its optimizer file.
        hooks: names of the run's hooks; the average is read only if :data:`EMA` is one of them.
    """
    states: States = {hook: {name: getattr(state, name) for name in names} for hook, names in _FIELDS.items()}
    states["losses"] = read_losses(folder)
    if EMA in hooks:
        states[EMA] = read_average(folder)
    states[TARGET_NORM] = {name: value for name, value in moments.items() if name.startswith(f"{TARGET_NORM}.")}
    if (folder / HOOKS).is_file():
        with safe_open(folder / HOOKS, "pt") as file:
            own = json.loads(file.metadata()[HOOKS_KEY])
            for hook, values in own.items():
                stem = f"{hook}."
                values |= {k.removeprefix(stem): file.get_tensor(k) for k in file.keys() if k.startswith(stem)}
        states |= own
    return states
