"""Saving and restoring a run from inside its workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from radioplat.distill import ds_compat, group
from radioplat.distill.checkpoint import (
    RunState,
    newest,
    read_checkpoint,
    read_losses,
    verified_state,
    write_checkpoint,
)
from radioplat.distill.ema import Ema
from radioplat.distill.loss_state import LossState
from radioplat.distill.optimizer import MOMENTS
from radioplat.distill.prepare import Run
from radioplat.distill.running_norm import saved_state
from radioplat.errors import WeightsError
from radioplat.models.checkpoint import read_average
from radioplat.models.weights import load_into
from radioplat.spec.train import IntervalUnit
from radioplat.track.attempts import Attempts
from radioplat.track.results import TaskFolder


class Persistence:
    """When to save, how to save, and what to begin from. Every rank holds one and calls it at the same steps."""

    def __init__(self, run: Run, rank: int, world_size: int) -> None:
        """Choose where to begin, the same on every rank: :attr:`state`.

        Raises:
            WeightsError: ``train.resume_training_checkpoint_path`` names no whole checkpoint.
        """
        self._run, self._rank = run, rank
        self._moments = MOMENTS.get(run.spec.train.optim.optim, ())
        self._optimizer_state: dict[str, torch.Tensor] = {}
        self.target_norm: dict[str, torch.Tensor] = {}  # once weights are restored: the state of its RunningNorm
        self._path, self.state = group.agree(self._choose() if rank == 0 else None)
        self.state.world_size = world_size

    def restore_weights(self, module: nn.Module, losses: LossState) -> None:
        """Load the student's weights and buffers and the losses' statistics, if there is a checkpoint to begin from."""
        if self._path is not None:
            tensors, self._optimizer_state = read_checkpoint(self._path)
            load_into(module.student, tensors, self._path, "results_dir")
            self.target_norm = saved_state(self._optimizer_state)
            self._weights = tensors
            losses.load(read_losses(self._path))

    def restore_optimizer(self, engine: Any, module: nn.Module) -> None:
        """Put fp32 weights and moments back, after the engine has cut them up."""
        if self.state.global_step:
            state = {**self._optimizer_state, **self._weights}
            ds_compat.load_full_state(engine, trainable(module), self._moments, state, self.state.optimizer_steps)
            self._optimizer_state, self._weights = {}, {}

    def restore_average(self, ema: Ema) -> None:
        """Go on with the checkpoint's average; a run that had none begins one at its present weights."""
        if self._path is not None:
            ema.load(read_average(self._path))

    def due(self, steps: int) -> bool:
        """Whether a checkpoint follows ``steps`` steps."""
        train = self._run.spec.train
        every = train.checkpoint_interval
        if train.checkpoint_interval_unit is IntervalUnit.epoch:
            every *= self._run.steps_per_epoch
        return steps % every == 0 or steps == self._run.total_steps

    def save(
        self,
        engine: Any,
        module: nn.Module,
        state: RunState,
        exact: dict[str, torch.Tensor],
        losses: dict[str, torch.Tensor],
        average: dict[str, torch.Tensor] | None = None,
        more: dict[str, torch.Tensor] | None = None,
    ) -> Path:
        """Write a checkpoint; all ranks gather, rank 0 writes and moves the ``model_latest`` link.

        Args:
            exact: buffers in fp32, by the module's names, where the engine's own are rounded.
            losses: the losses' statistics.
            average: the EMA of weights and buffers, by the student's names; empty where there is none.
            more: running state to keep beside the moments, by names that no parameter has.
        """
        whole = ds_compat.full_state(engine, trainable(module), self._moments)
        folder = TaskFolder(self._run.folder.parent, self._run.folder.name)
        inside = state.global_step % self._run.steps_per_epoch
        name = folder.checkpoint_name(state.epoch, state.global_step if inside else None)
        if self._rank == 0:
            names = trainable(module)
            tensors = {k: v.detach().cpu() for k, v in module.student.state_dict().items()}
            tensors.update({k: whole[k] for k in names})
            tensors.update({k.removeprefix("student."): v for k, v in exact.items()})
            moments = {k: v for k, v in whole.items() if k not in names}
            parts = (module.student, tensors, moments | (more or {}), state, losses, average)
            write_checkpoint(self._run.folder, name, *parts)
            folder.point_latest(name)
        group.barrier()
        return self._run.folder / name

    def _choose(self) -> tuple[Path | None, RunState]:
        found = starting_point(self._run)
        attempt = _attempts(self._run.folder) + 1
        if found is None:
            return None, RunState(order_hash=self._run.order_hash, order_fields=self._run.order_fields, attempt=attempt)
        path, state = found
        state.attempt = attempt
        if state.order_hash != self._run.order_hash or path.parent.resolve() != self._run.folder.resolve():
            state.order_from = state.global_step
        state.order_hash, state.order_fields = self._run.order_hash, self._run.order_fields
        return path, state


def starting_point(run: Run) -> tuple[Path, RunState] | None:
    """The checkpoint that a start of ``run`` goes on from: its own newest, else the one that the spec names, else None.

    Raises:
        WeightsError: ``train.resume_training_checkpoint_path`` names no whole checkpoint.
    """
    explicit = run.spec.train.resume_training_checkpoint_path
    found = newest(run.folder)
    if found is not None or not explicit:
        return found
    state = verified_state(Path(explicit))
    if state is None:
        raise WeightsError(
            f"{explicit} is not a whole checkpoint",
            where="train.resume_training_checkpoint_path",
            hint="Give a model_epoch_... folder or the model_latest link.",
        )
    return Path(explicit), state


def trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    """The student's trainable parameters, by the student's own names."""
    return {name: p for name, p in module.student.named_parameters() if p.requires_grad}


def _attempts(folder: Path) -> int:
    """Starts of this run so far: each says so, and leaves files in the ledger."""
    written = max((int(p.name.split("-a")[1][:4]) for p in (folder / "ledger").glob("consumed-a*.parquet")), default=0)
    return max(written, Attempts(folder).last)
