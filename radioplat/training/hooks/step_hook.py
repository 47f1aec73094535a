"""The interface of step hooks: guards, statistics, averages, accounting and reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from radioplat.data.batch import Batch
from radioplat.training.hooks.step_record import CONTINUE, StepDecision, StepRecord


class StepHook:
    """Callbacks for the steps of one rank; the methods of this base class do nothing.

    Every rank calls the methods in this order: ``begin_step``; for each of its micro-batches ``begin_micro_batch``,
    ``losses`` once, or once per piece if micro-batches are split to save memory, and ``end_micro_batch``; ``sums``
    after the last forward, which the ranks add up together with the losses; ``before_update`` after the last backward;
    ``end_step`` after the optimizer step; ``after_step`` and ``figures``. All methods may use collectives, except
    ``end_micro_batch``: it is not called for padding, so ranks call it a different number of times.

    A hook that reads a tensor of the device makes the host wait for it. ``record`` has losses and ``sums`` on the host.

    Attributes:
        name: key of the hook's state in checkpoints.
    """

    name = ""

    @property
    def needs_step_targets(self) -> bool:
        """Whether all micro-batches of a step have to arrive before its first forward."""
        return False

    def begin_step(self, step: int) -> None:
        """Called at the start of global ``step``, counted from 0."""

    def targets_arrived(self, step: int) -> None:
        """Called before the first forward of ``step``, if ``needs_step_targets``: the teachers' answers are there."""

    def begin_micro_batch(self, step: int, batch: Batch) -> None:
        """Called when ``batch`` has arrived; it is padding if ``batch.micro_batch < 0``.

        If a hook has decided to skip the step, no forward follows.
        """

    def losses(self, step: int, batch: Batch, losses: Mapping[str, torch.Tensor], last: bool) -> StepDecision:
        """Decide after a forward, before its backward, if the step is skipped; all ranks must decide the same.

        Args:
            losses: fp32 scalars by name; they may be NaN or infinite, which is found before the update. After the
                backward the mapping is empty: a hook that wants a loss later keeps a detached copy.
            last: True at the step's last forward.
        """
        return CONTINUE

    def end_micro_batch(self, step: int, batch: Batch) -> None:
        """Called when the samples of ``batch`` are consumed, also in a skipped step; not called for padding."""

    def sums(self) -> dict[str, float]:
        """Return numbers of this rank's step that are added up over all ranks, for ``record.sums``; {} if none.

        The last micro-batch has begun, and has not ended.
        """
        return {}

    def before_update(self, record: StepRecord) -> StepDecision:
        """Decide after the last backward, before the update, if the step is skipped; all ranks must decide the same.

        Args:
            record: contains the means and sums over all ranks.
        """
        return CONTINUE

    def end_step(self, record: StepRecord) -> None:
        """Called after the optimizer step, or after a hook skipped the step (``record.skipped``).

        ``record.moved`` is True if the weights have changed.
        """

    def after_step(self, record: StepRecord) -> None:
        """Called at the very end of the step; ``record`` is complete."""

    def figures(self) -> dict[str, float]:
        """Return figures of the step, by name, for status.json, TensorBoard and W&B."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return the state for checkpoints: tensors and JSON values by name; every rank calls it, rank 0's is saved."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned, on every rank; not called if the checkpoint has none."""


class ShardedHook(StepHook):
    """A hook that also has tensors like those that the engine updates, each rank its own pieces.

    Its ``state_dict`` is their whole values by parameter name and :meth:`small_state`. A checkpoint copies both, and
    gathers the whole values while training goes on.
    """

    def shards(self) -> list[torch.Tensor]:
        """Return the tensors themselves, in the shapes of :meth:`Engine.masters`."""
        raise NotImplementedError

    def small_state(self) -> dict[str, torch.Tensor]:
        """Return a copy of the rest of the state, on the CPU, the same on every rank."""
        raise NotImplementedError


class StepHooks(StepHook):
    """Call several hooks one after the other, in the given order."""

    def __init__(self, hooks: Sequence[StepHook]) -> None:
        self._hooks = list(hooks)

    @property
    def names(self) -> list[str]:
        """Names of the hooks, in order."""
        return [hook.name for hook in self._hooks]

    def add_before(self, hook: StepHook, other: StepHook) -> None:
        """Insert ``hook`` before ``other``."""
        self._hooks.insert(self._hooks.index(other), hook)

    def begin_step(self, step: int) -> None:
        """See :class:`StepHook`."""
        for hook in self._hooks:
            hook.begin_step(step)

    @property
    def needs_step_targets(self) -> bool:
        """Whether one of the hooks does."""
        return any(hook.needs_step_targets for hook in self._hooks)

    def targets_arrived(self, step: int) -> None:
        """See :class:`StepHook`."""
        for hook in self._hooks:
            hook.targets_arrived(step)

    def begin_micro_batch(self, step: int, batch: Batch) -> None:
        """See :class:`StepHook`."""
        for hook in self._hooks:
            hook.begin_micro_batch(step, batch)

    def losses(self, step: int, batch: Batch, losses: Mapping[str, torch.Tensor], last: bool) -> StepDecision:
        """Return the first decision to skip; later hooks are not called."""
        decisions = (hook.losses(step, batch, losses, last) for hook in self._hooks)
        return next((decision for decision in decisions if decision.skip), CONTINUE)

    def end_micro_batch(self, step: int, batch: Batch) -> None:
        """See :class:`StepHook`."""
        for hook in self._hooks:
            hook.end_micro_batch(step, batch)

    def sums(self) -> dict[str, float]:
        """Return the hooks' numbers as ``<hook>/<name>``."""
        return {f"{hook.name}/{name}": number for hook in self._hooks for name, number in hook.sums().items()}

    def before_update(self, record: StepRecord) -> StepDecision:
        """Return the first decision to skip; later hooks are not called."""
        decisions = (hook.before_update(record) for hook in self._hooks)
        return next((decision for decision in decisions if decision.skip), CONTINUE)

    def end_step(self, record: StepRecord) -> None:
        """See :class:`StepHook`."""
        for hook in self._hooks:
            hook.end_step(record)

    def after_step(self, record: StepRecord) -> None:
        """See :class:`StepHook`; a hook finds the figures of earlier hooks in ``record.figures``."""
        for hook in self._hooks:
            hook.after_step(record)
            record.figures |= hook.figures()

    def states(self) -> dict[str, dict[str, Any]]:
        """Return each hook's ``state_dict`` by the hook's name, without empty ones and without :meth:`shards`."""
        states = {h.name: h.small_state() if isinstance(h, ShardedHook) else h.state_dict() for h in self._hooks}
        return {name: state for name, state in states.items() if state}

    def shards(self) -> dict[str, list[torch.Tensor]]:
        """Return the :meth:`ShardedHook.shards` of each hook that has some, by the hook's name."""
        return {hook.name: hook.shards() for hook in self._hooks if isinstance(hook, ShardedHook)}

    def load_states(self, states: Mapping[str, dict[str, Any]]) -> None:
        """Load into each hook the state with its name, if there is one."""
        for hook in self._hooks:
            if states.get(hook.name):
                hook.load_state_dict(states[hook.name])
