"""Save and restore checkpoints from inside the training workers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from radioplat.common import collectives
from radioplat.common.terminal import note
from radioplat.data.ledger.files import attempt_in
from radioplat.design.run import Run
from radioplat.errors import TrainingError
from radioplat.models.weights.read import load_into
from radioplat.objectives.objective import Objective
from radioplat.objectives.peers import PREFIX, peer_buffers, peer_parameters, restore_peers
from radioplat.optim.optimizer import MOMENTS
from radioplat.spec.schema.train import IntervalUnit
from radioplat.tracking.attempts.attempts import Attempts
from radioplat.tracking.attempts.logs import begun
from radioplat.tracking.lease import check_lease
from radioplat.tracking.results import TaskFolder
from radioplat.tracking.teacher_cost import TeacherCosts
from radioplat.training.checkpoints.background import Background
from radioplat.training.checkpoints.checkpoint import Snapshot, read_checkpoint, snapshot
from radioplat.training.checkpoints.hook_states import (
    BATCHNORM,
    EMA,
    TARGET_NORM,
    States,
    files_of,
    read_states,
    update_run_state,
)
from radioplat.training.checkpoints.resume import mirror_of, starting_point
from radioplat.training.checkpoints.run_ledger import RunLedger
from radioplat.training.checkpoints.run_state import RunState
from radioplat.training.checkpoints.teacher_change import TeacherChange, teacher_change
from radioplat.training.checkpoints.writer import CheckpointWriter, Outcome
from radioplat.training.engine.engine import WEIGHTS, Engine, stored
from radioplat.training.hooks.step_hook import StepHooks
from radioplat.training.watch.collective_timeout import collective_timeout


class Persistence:
    """Decide when to save checkpoints, and save and restore them.

    Every rank has one and calls its methods at the same steps.
    """

    def __init__(self, run: Run, rank: int, world_size: int, attempt: int | None = None) -> None:
        """Choose the checkpoint to resume from and set :attr:`state`, the same on every rank.

        Args:
            attempt: the current one, for a roll-back in it; default: a new one.

        Raises:
            RadioplatError: on every rank, as raised by :func:`starting_point`, or if another run took over the folder.
        """
        self._run, self._rank, self._attempt = run, rank, attempt
        self._moments = MOMENTS.get(run.spec.train.optim.optim, ())
        self._moments_of: dict[str, torch.Tensor] = {}  # from the checkpoint, until they are restored
        self._frozen: dict[str, torch.Tensor] = {}
        self._change: TeacherChange | None = None
        self._writer: CheckpointWriter | None = None
        self._sender = Background()  # of ranks other than 0; rank 0 receives in the thread of its writer
        self._channel: dist.ProcessGroup | None = None
        self._lost = ""  # what is missing of the ledger; rank 0 only
        self._path, self.state = collectives.from_first(self._begin)
        self.state.world_size = world_size
        self._last = 0  # step of the last save

    def warn_through(self, warn: Callable[[str], None]) -> None:
        """Report failures of the checkpoint thread to ``warn`` and to the terminal."""

        def warn_both(line: str) -> None:
            """Print the line, and write it to ``warn``."""
            note(line)
            warn(line)

        if self._writer is not None:
            self._writer.warn = warn_both
        if self._lost:
            warn_both(self._lost)

    def restore_weights(self, objective: Objective) -> None:
        """Load the weights and buffers of the student and its peers, if there is a checkpoint to resume from.

        Call it before the engine is built: the engine rounds frozen weights, and at ZeRO stage 3 partitions them.
        """
        self._objective = objective
        if self._path is not None:
            tensors, self._moments_of = read_checkpoint(self._path)
            if self._run.spec.train.allow_teacher_change:
                self._change = teacher_change(self._path, objective.student)
            if self._change is not None:
                tensors = self._change.weights(tensors)
                self._moments_of = self._change.moments(self._moments_of, self._moments)
            load_into(objective.student, tensors, self._path, "results_dir")
            self._weights = {**tensors, **restore_peers(objective, self._moments_of)}
        # Copy frozen parameters now: ZeRO-3 partitions them too, and a bf16 engine rounds them permanently, because
        # they have no fp32 master weights.
        if self._rank == 0:
            frozen = ((name, p) for name, p in objective.student.named_parameters() if not p.requires_grad)
            self._frozen = {name: p.detach().cpu().clone() for name, p in frozen}

    def restore_optimizer(self, engine: Engine) -> None:
        """Restore fp32 weights and optimizer moments; call it after the engine has partitioned the parameters."""
        self._engine = engine
        # A peer's weights are stored in the optimizer file, because users of the student do not need them.
        names = {**trainable(self._objective), **peer_parameters(self._objective)}
        if self.state.global_step:
            state = {**self._moments_of, **self._weights}
            engine.load_full_state(names, self._moments, state, self.state.optimizer_steps)
        self._channel = collectives.open_channel(collective_timeout(self._run.spec))
        self._whole = engine.whole_tensors(names, self._channel)

    def restore_hooks(self, hooks: StepHooks) -> None:
        """Restore the states of the hooks from the checkpoint; call it after :meth:`restore_optimizer`."""
        if self._path is not None:
            states = read_states(self._path, self.state, self._moments_of, hooks.names)
            if self._change is not None and states.get(EMA):
                states[EMA] = self._change.averages(states[EMA])
            hooks.load_states(states)
        self._moments_of, self._weights = {}, {}
        self._whole.reserve([WEIGHTS, *self._moments, *hooks.shards()])

    def due(self, steps: int) -> bool:
        """Return True if the spec asks for a checkpoint after ``steps`` steps."""
        train = self._run.spec.train
        every = train.checkpoint_interval
        if train.checkpoint_interval_unit is IntervalUnit.epoch:
            every *= self._run.steps_per_epoch
        return steps % every == 0 or steps == self._run.total_steps

    def save(
        self, hooks: StepHooks, on_commit: Callable[[Path], None] = lambda path: None, unwritten: OSError | None = None
    ) -> Path:
        """Save :attr:`state`; every rank must call it.

        Each rank copies its pieces of the tensors; a thread of each rank sends them to rank 0, whose thread writes the
        checkpoint and updates the ``model_latest`` link. Unless ``train.async_checkpoint`` is off, this returns after
        the copies, and :meth:`finish` waits until the checkpoint is committed.

        Args:
            on_commit: called on rank 0, in the thread, with the checkpoint's folder once it is committed.
            unwritten: the error that kept this rank from writing its ledger. No checkpoint is then written, because
                without the ledger its samples cannot be proved.

        Returns:
            The folder that the checkpoint is written to.

        Raises:
            TrainingError: on every rank, if more saves in a row have failed than allowed (see :meth:`finish`).
        """
        problem = self._settle(None if unwritten is None else str(unwritten))[1]
        state = self.state
        self._last = state.global_step
        inside = state.global_step % self._run.steps_per_epoch
        name = TaskFolder.checkpoint_name(state.epoch, state.global_step if inside else None)
        path = self._run.folder / name
        if problem:
            if self._writer is not None:
                self._writer.missed(self._last, f"the ledger cannot be written: {problem}")
            return path
        states, shards = hooks.states(), hooks.shards()
        update_run_state(state, states)
        self._whole.copy({**self._engine.values(self._moments), **shards})
        if self._writer is not None:
            self._writer.put(self._taken(name, states, list(shards)), on_commit)
        else:
            self._sender.begin(self._whole.gather)
        if not self._run.spec.train.async_checkpoint:
            self.finish()
        return path

    def _taken(self, name: str, states: States, sharded: list[str]) -> Callable[[], Snapshot]:
        """Copy what :class:`WholeTensors` has not copied; return a function that gathers, for the writer's thread.

        Args:
            states: of the hooks, without the values that are gathered.
            sharded: names of the hooks whose values are gathered.
        """
        student, mine = self._objective.student, trainable(self._objective)
        exact = states.pop(BATCHNORM, {})
        tensors = {k.removeprefix("student."): v for k, v in exact.items() if not k.startswith(PREFIX)}
        for key, value in student.state_dict().items():
            if key not in mine and key not in tensors:
                tensors[key] = self._frozen[key] if key in self._frozen else value.detach().cpu().clone()
        rest = {k: v.detach().cpu().clone() for k, v in peer_buffers(self._objective).items()}
        rest |= {k: v for k, v in exact.items() if k.startswith(PREFIX)}
        rest |= {**self._engine.scales(), **states.get(TARGET_NORM, {})}
        state, files = copy.deepcopy(self.state), files_of(states)

        def gathered() -> Snapshot:
            """Return the checkpoint of the step at which the copies were made."""
            kinds = self._whole.gather()
            for hook in sharded:
                average = {key: value for key, value in kinds.pop(hook).items() if key in mine}
                files.update(files_of({hook: {**average, **states.get(hook, {})}}))
            whole = stored(kinds) | rest
            tensors.update({key: whole.pop(key) for key in mine})
            return snapshot(name, student, tensors, whole, state, files)

        return gathered

    def finish(self) -> Path | None:
        """Wait until the save in progress is committed; every rank must call it.

        Returns:
            The newest checkpoint that this start has committed, the same on all ranks; None if there is none yet.

        Raises:
            TrainingError: on every rank, if more saves in a row failed than ``train.max_checkpoint_failures`` allows,
                or the last save of the run failed.
        """
        return self._settle(None)[0].newest

    def _settle(self, problem: str | None) -> tuple[Outcome, str]:
        """Wait like :meth:`finish`, and exchange the ranks' problems.

        Returns:
            The results of the saves so far, and the first rank's ``problem`` that has one, both the same on all ranks.
        """
        self._sender.wait()
        mine = (None if self._writer is None else self._writer.wait(), self._sender.error, problem)
        outcomes, errors, problems = zip(*collectives.gather_objects(mine), strict=True)
        outcome: Outcome = outcomes[0]
        outcome.fatal = outcome.fatal or next(filter(None, errors), "")
        with collectives.mark_agreed():
            self._judge(outcome)
        return outcome, next(filter(None, problems), "")

    def scored(self, checkpoint: Path, kpi: dict[str, float]) -> None:
        """Write the validation results of a checkpoint into its folder; rank 0 only."""
        if self._writer is not None:
            self._writer.score(checkpoint, kpi)

    def close(self) -> None:
        """Wait for the save in progress and ignore its failure; every rank calls it at its end, also after an error."""
        self._sender.close()
        if self._writer is not None:
            self._writer.close()
        collectives.close_channel(self._channel)
        self._channel = None

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

    def _begin(self) -> tuple[Path | None, RunState]:
        """Return the checkpoint to resume from, or None, and the run's state; create the writer. Rank 0 only."""
        run = self._run
        if (taken := check_lease(run.folder, run.lease)) is not None:  # another run owns the folder: remove nothing
            raise taken
        chosen = self._choose()
        self._writer = CheckpointWriter(run.folder, run.spec.train, mirror_of(run.spec, run.task), RunLedger(run))
        return chosen

    def _choose(self) -> tuple[Path | None, RunState]:
        path, state = starting_point(self._run) or (None, RunState(attempt=0))
        attempt = self._attempt or max(last_attempt(self._run.folder), state.attempt) + 1  # also of another machine
        elsewhere = path is not None and path.parent.resolve() != self._run.folder.resolve()
        if elsewhere:  # the teachers' work for the other run is in that one's record
            own = TeacherCosts.read(self._run.folder)
            state.teacher_cost = {name: asdict(cost) for name, cost in (own.teachers if own else {}).items()}
        if state.order_hash != self._run.order_hash or elsewhere:
            state.order_from = state.global_step
        elif state.global_step > state.order_from and not any(self._run.folder.glob("ledger/consumed-a*.parquet")):
            self._lost = f"the ledger of steps {state.order_from} to {state.global_step} is lost; it begins anew"
            state.order_from = state.global_step
        state.order_hash, state.order_fields = self._run.order_hash, self._run.order_fields
        state.begin(attempt)
        return path, state


def trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the student's trainable parameters, by the student's names."""
    return {name: p for name, p in module.student.named_parameters() if p.requires_grad}


def last_attempt(folder: Path) -> int:
    """Return the highest attempt number so far, from ``attempts.jsonl``, the logs and the ledger's files."""
    consumed = (attempt_in(path.name) for path in (folder / "ledger").glob("consumed-a*.parquet"))
    return max(begun(folder), Attempts(folder).last, *consumed, 0)
