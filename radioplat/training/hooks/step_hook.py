"""The interface of everything that follows the steps of a run: guards, statistics, averages, accounts, reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from radioplat.data.batch import Batch
from radioplat.training.hooks.step_record import CONTINUE, StepDecision, StepRecord


class StepHook:
    """Follows the steps of one rank; no method does anything unless a subclass overrides it.

    Every rank calls the methods in this order: ``begin_step``; for each of its micro-batches ``begin_micro_batch``,
    ``losses`` once or, where memory is short, once per piece, and ``end_micro_batch``; ``before_update`` after the last
    backward; ``end_step`` after the optimizer; ``after_step`` and ``figures`` once the record is that of all ranks.
    All but ``losses`` and ``end_micro_batch`` may use collectives.

    Attributes:
        name: key of the hook's state in checkpoints.
    """

    name = ""

    def begin_step(self, step: int) -> None:
        """Global ``step``, from 0, begins."""

    def begin_micro_batch(self, step: int, batch: Batch) -> None:
        """``batch`` has arrived (padding if its number is below 0); after a decision to skip, no forward follows."""

    def losses(self, step: int, batch: Batch, losses: Mapping[str, torch.Tensor], last: bool) -> StepDecision:
        """Decide after a forward and before its backward; every rank must return the same decision.

        Args:
            losses: fp32 scalars by name.
            last: this is the step's last forward.
        """
        return CONTINUE

    def end_micro_batch(self, step: int, batch: Batch) -> None:
        """The samples of ``batch``, which is no padding, are consumed, whether or not the step is skipped."""

    def before_update(self, record: StepRecord) -> StepDecision:
        """Decide after the last backward and before the weights move; every rank must return the same decision.

        Args:
            record: losses of this rank, summed over its micro-batches.
        """
        return CONTINUE

    def end_step(self, record: StepRecord) -> None:
        """The weights have moved, if ``record.moved``; ``record.skipped`` if a hook decided so."""

    def after_step(self, record: StepRecord) -> None:
        """``record`` now holds the means and sums over all ranks."""

    def figures(self) -> dict[str, float]:
        """Figures of the step for status.json, TensorBoard and W&B, by name."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint: tensors and JSON values by name; every rank calls it, rank 0's is saved."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned, on every rank; not called if the checkpoint has none."""


class StepHooks(StepHook):
    """Hooks that are called one after the other, in the order given."""

    def __init__(self, hooks: Sequence[StepHook]) -> None:
        self._hooks = list(hooks)

    @property
    def names(self) -> list[str]:
        """Of the hooks, in order."""
        return [hook.name for hook in self._hooks]

    def add_before(self, hook: StepHook, other: StepHook) -> None:
        """Insert ``hook`` before ``other``."""
        self._hooks.insert(self._hooks.index(other), hook)

    def begin_step(self, step: int) -> None:
        """See :class:`StepHook`."""
        for hook in self._hooks:
            hook.begin_step(step)

    def begin_micro_batch(self, step: int, batch: Batch) -> None:
        """See :class:`StepHook`."""
        for hook in self._hooks:
            hook.begin_micro_batch(step, batch)

    def losses(self, step: int, batch: Batch, losses: Mapping[str, torch.Tensor], last: bool) -> StepDecision:
        """The first decision to skip; the hooks behind it are not asked."""
        decisions = (hook.losses(step, batch, losses, last) for hook in self._hooks)
        return next((decision for decision in decisions if decision.skip), CONTINUE)

    def end_micro_batch(self, step: int, batch: Batch) -> None:
        """See :class:`StepHook`."""
        for hook in self._hooks:
            hook.end_micro_batch(step, batch)

    def before_update(self, record: StepRecord) -> StepDecision:
        """The first decision to skip; the hooks behind it are not asked."""
        decisions = (hook.before_update(record) for hook in self._hooks)
        return next((decision for decision in decisions if decision.skip), CONTINUE)

    def end_step(self, record: StepRecord) -> None:
        """See :class:`StepHook`."""
        for hook in self._hooks:
            hook.end_step(record)

    def after_step(self, record: StepRecord) -> None:
        """See :class:`StepHook`; each hook sees the figures of those before it in ``record.figures``."""
        for hook in self._hooks:
            hook.after_step(record)
            record.figures |= hook.figures()

    def states(self) -> dict[str, dict[str, Any]]:
        """Each hook's ``state_dict`` by the hook's name; empty ones are left out."""
        states = {hook.name: hook.state_dict() for hook in self._hooks}
        return {name: state for name, state in states.items() if state}

    def load_states(self, states: Mapping[str, dict[str, Any]]) -> None:
        """Give each hook the state with its name, if there is one."""
        for hook in self._hooks:
            if states.get(hook.name):
                hook.load_state_dict(states[hook.name])
