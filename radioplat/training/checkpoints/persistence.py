"""Saving and restoring a run from inside its workers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from radioplat.common import collectives
from radioplat.common.terminal import note
from radioplat.design.run import Run
from radioplat.errors import RadioplatError, TrainingError
from radioplat.models.student.checkpoint import read_average
from radioplat.models.weights.read import load_into
from radioplat.objectives.loss_state import LossState
from radioplat.objectives.peers import PREFIX, peer_buffers, peer_parameters, restore_peers
from radioplat.optim.optimizer import MOMENTS
from radioplat.spec.schema.train import IntervalUnit
from radioplat.tracking.attempts.attempts import Attempts
from radioplat.tracking.attempts.logs import begun
from radioplat.tracking.lease import check_lease
from radioplat.tracking.results import TaskFolder
from radioplat.training.checkpoints.checkpoint import read_checkpoint, read_losses, snapshot, target_norm_state
from radioplat.training.checkpoints.resume import mirror_of, starting_point
from radioplat.training.checkpoints.run_state import RunState
from radioplat.training.checkpoints.writer import Outcome, Shelf
from radioplat.training.engine import deepspeed_compat
from radioplat.training.engine.ema import Ema


class Persistence:
    """When to save, how to save, and what to begin from. Every rank holds one and calls it at the same steps."""

    def __init__(self, run: Run, rank: int, world_size: int) -> None:
        """Choose where to begin, the same on every rank: :attr:`state`.

        Raises:
            RadioplatError: on every rank; as :func:`starting_point`, or another run has taken the folder over.
        """
        self._run, self._rank = run, rank
        self._moments = MOMENTS.get(run.spec.train.optim.optim, ())
        self._optimizer_state: dict[str, torch.Tensor] = {}
        self._frozen: dict[str, torch.Tensor] = {}
        self.target_norm: dict[str, torch.Tensor] = {}  # once weights are restored: the state of its RunningNorm
        self._shelf: Shelf | None = None
        chosen = collectives.broadcast_object(self._begin() if rank == 0 else None)
        if isinstance(chosen, RadioplatError):
            with collectives.mark_agreed():
                raise chosen
        self._path, self.state = chosen
        self.state.world_size = world_size
        self._last = 0  # step of the last save

    def warn_through(self, warn: Callable[[str], None]) -> None:
        """Have what goes wrong in the background told to ``warn`` and to the terminal."""

        def warn_both(line: str) -> None:
            note(line)
            warn(line)

        if self._shelf is not None:
            self._shelf.warn = warn_both

    def restore_weights(self, module: nn.Module, losses: LossState) -> None:
        """Load the student's weights and buffers and the losses' statistics, if there is a checkpoint to begin from.

        Before the engine gets the module: that rounds frozen weights, and at stage 3 cuts them up.
        """
        if self._path is not None:
            tensors, self._optimizer_state = read_checkpoint(self._path)
            load_into(module.student, tensors, self._path, "results_dir")
            self.target_norm = target_norm_state(self._optimizer_state)
            self._weights = {**tensors, **restore_peers(module, self._optimizer_state)}
            losses.load(read_losses(self._path))
        # What does not learn is kept here as it is now: ZeRO-3 cuts frozen parameters up too, and a bf16 engine rounds
        # them for good, for they have no fp32 master.
        if self._rank == 0:
            self._frozen = {
                name: p.detach().cpu().clone() for name, p in module.student.named_parameters() if not p.requires_grad
            }

    def restore_optimizer(self, engine: Any, module: nn.Module) -> None:
        """Put fp32 weights and moments back, after the engine has cut them up."""
        if self.state.global_step:
            state = {**self._optimizer_state, **self._weights}
            names = {**trainable(module), **peer_parameters(module)}
            deepspeed_compat.load_full_state(engine, names, self._moments, state, self.state.optimizer_steps)
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
        *,
        told: Callable[[Path], None] = lambda path: None,
        unwritten: OSError | None = None,
    ) -> Path:
        """Save: all ranks gather, and rank 0's thread writes and moves the ``model_latest`` link.

        Returns before the checkpoint is committed, unless ``train.async_checkpoint`` is off; :meth:`finish` waits.

        Args:
            exact: buffers in fp32, by the module's names, where the engine's own are rounded.
            losses: the losses' statistics.
            average: the EMA of weights and buffers, by the student's names; empty where there is none.
            more: running state to keep beside the moments, by names that no parameter has.
            told: called on rank 0, in the thread, with the folder once it is committed.
            unwritten: what kept this rank from writing its ledger. A checkpoint without its ledger proves nothing:
                then none is written.

        Returns:
            The checkpoint's folder, as it will be.

        Raises:
            TrainingError: earlier saves failed, and too many in a row.
        """
        self.finish()
        self._last = state.global_step
        inside = state.global_step % self._run.steps_per_epoch
        name = TaskFolder.checkpoint_name(state.epoch, state.global_step if inside else None)
        path = self._run.folder / name
        problems = [problem for problem in collectives.gather_objects(unwritten and str(unwritten)) if problem]
        if problems:
            if self._shelf is not None:
                self._shelf.missed(self._last, f"the ledger cannot be written: {problems[0]}")
            return path
        # A peer's weights lie beside the moments: who opens the student has no use for them.
        whole = deepspeed_compat.full_state(engine, {**trainable(module), **peer_parameters(module)}, self._moments)
        if self._shelf is not None:
            whole |= {k: v.detach().cpu().clone() for k, v in peer_buffers(module).items()}
            whole |= {k: v for k, v in exact.items() if k.startswith(PREFIX)}
            tensors = {n: self._whole(n, v, whole) for n, v in module.student.state_dict().items()}
            tensors.update({k.removeprefix("student."): v for k, v in exact.items() if not k.startswith(PREFIX)})
            parts = (module.student, tensors, whole | (more or {}), state, losses, average)
            self._shelf.put(snapshot(name, *parts), told)
        if not self._run.spec.train.async_checkpoint:
            self.finish()
        return path

    def _whole(self, name: str, value: torch.Tensor, whole: dict[str, torch.Tensor]) -> torch.Tensor:
        """The tensor that a checkpoint holds as ``name`` of the student; takes it out of ``whole``."""
        if name in whole:
            return whole.pop(name)
        return self._frozen[name] if name in self._frozen else value.detach().cpu().clone()

    def finish(self) -> Path | None:
        """Wait until what is in flight is committed; all ranks call it.

        Returns:
            The newest committed checkpoint of this start, the same on all ranks; None where there is none yet.

        Raises:
            TrainingError: more saves in a row failed than ``train.max_checkpoint_failures`` allows, or the last one of
                the run did; on all ranks.
        """
        outcome: Outcome = collectives.broadcast_object(None if self._shelf is None else self._shelf.wait())
        with collectives.mark_agreed():
            self._judge(outcome)
        return outcome.newest

    def scored(self, checkpoint: Path, kpi: dict[str, float]) -> None:
        """Keep what the validation of a checkpoint found beside it; rank 0 only."""
        if self._shelf is not None:
            self._shelf.score(checkpoint, kpi)

    def close(self) -> None:
        """Wait for what is in flight, in silence; every rank calls it when it ends, however it ends."""
        if self._shelf is not None:
            self._shelf.close()

    def _judge(self, outcome: Outcome) -> None:
        if outcome.fatal:
            raise TrainingError(f"a checkpoint could not be made: {outcome.fatal}")
        limit = self._run.spec.train.max_checkpoint_failures
        at_end = self._last == self._run.total_steps
        if outcome.failures and (outcome.failures > limit or at_end):
            which = "the last checkpoint of the run" if at_end else f"{outcome.failures} checkpoints in a row"
            newest = f"{outcome.newest.name} is the newest here" if outcome.newest else "none was written by this start"
            raise TrainingError(
                f"{which} could not be written or copied: {outcome.reason}; {newest}",
                where="train.checkpoint_dir" if outcome.step == self._last else str(self._run.folder),
                hint="Put that right and run the same command again: it goes on from the newest checkpoint.",
            )

    def _begin(self) -> tuple[Path | None, RunState] | RadioplatError:
        """On rank 0: where to begin, or what keeps the run from it."""
        run = self._run
        if (taken := check_lease(run.folder, run.lease)) is not None:  # nothing here is ours to clear
            return taken
        try:
            chosen = self._choose()
        except RadioplatError as error:
            return error
        self._shelf = Shelf(run.folder, run.spec.train, mirror_of(run.spec, run.task))
        return chosen

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


def trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    """The student's trainable parameters, by the student's own names."""
    return {name: p for name, p in module.student.named_parameters() if p.requires_grad}


def _attempts(folder: Path) -> int:
    """Starts of this run so far: each says so, and leaves files in the ledger and in the logs."""
    consumed = (int(p.name.split("-a")[1][:4]) for p in (folder / "ledger").glob("consumed-a*.parquet"))
    return max(begun(folder), Attempts(folder).last, *consumed, 0)
