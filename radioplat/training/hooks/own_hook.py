"""A user's own step hook, named in ``train.hooks`` by its import path."""

from __future__ import annotations

import contextlib
import inspect
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from radioplat.common import collectives
from radioplat.common.import_path import import_object
from radioplat.data.batch import Batch
from radioplat.errors import Problem, SpecError, TrainingError
from radioplat.objectives.objective import Objective
from radioplat.spec.schema.root import Spec
from radioplat.training.hooks.step_hook import StepHook
from radioplat.training.hooks.step_record import CONTINUE, StepDecision, StepRecord

_METHODS = sorted(name for name, _ in inspect.getmembers(StepHook, inspect.isfunction))
_BASE = f"{StepHook.__module__}.{StepHook.__name__}"


@dataclass(frozen=True)
class HookContext:
    """Constructor argument of a user's hook, on each rank.

    Attributes:
        objective: the module that is trained; ``objective.student`` is the model. From ZeRO stage 1 on its weights are
            those that forward uses; at stage 3 each rank has a part.
        folder: the task's results folder.
    """

    spec: Spec
    objective: Objective
    rank: int
    world_size: int
    device: torch.device
    folder: Path


class OwnHook(StepHook):
    """Calls a user's hook: errors name it and the spec's field, decisions are made equal on all ranks.

    Raises:
        SpecError: it cannot be imported or built, or lacks methods.
    """

    def __init__(self, path: str, where: str, context: HookContext) -> None:
        self._where, self._device = where, context.device
        self.name = path
        with self._guarded("__init__", SpecError):
            cls = hook_class(path, where)
            self._hook = cls(context) if cls.__init__ is not object.__init__ else cls()
        self._decides = any(
            getattr(type(self._hook), name) is not getattr(StepHook, name) for name in ("losses", "before_update")
        )

    def begin_step(self, step: int) -> None:
        """See :class:`StepHook`, as for the other methods."""
        with self._guarded("begin_step"):
            self._hook.begin_step(step)

    def begin_micro_batch(self, step: int, batch: Batch) -> None:
        """See the class."""
        with self._guarded("begin_micro_batch"):
            self._hook.begin_micro_batch(step, batch)

    def losses(self, step: int, batch: Batch, losses: Mapping[str, torch.Tensor], last: bool) -> StepDecision:
        """Skip the step if the hook of any rank decides so."""
        with self._guarded("losses"):
            mine = self._hook.losses(step, batch, losses, last)
        return self._agreed(mine, "losses")

    def end_micro_batch(self, step: int, batch: Batch) -> None:
        """See the class."""
        with self._guarded("end_micro_batch"):
            self._hook.end_micro_batch(step, batch)

    def before_update(self, record: StepRecord) -> StepDecision:
        """Skip the step if the hook of any rank decides so."""
        with self._guarded("before_update"):
            mine = self._hook.before_update(record)
        return self._agreed(mine, "before_update")

    def end_step(self, record: StepRecord) -> None:
        """See the class."""
        with self._guarded("end_step"):
            self._hook.end_step(record)

    def after_step(self, record: StepRecord) -> None:
        """See the class."""
        with self._guarded("after_step"):
            self._hook.after_step(record)

    def figures(self) -> dict[str, float]:
        """See the class."""
        with self._guarded("figures"):
            return {str(name): float(value) for name, value in self._hook.figures().items()}

    def state_dict(self) -> dict[str, Any]:
        """See the class."""
        with self._guarded("state_dict"):
            state = dict(self._hook.state_dict())
            json.dumps({name: value for name, value in state.items() if not isinstance(value, torch.Tensor)})
            return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See the class."""
        with self._guarded("load_state_dict"):
            self._hook.load_state_dict(state)

    def _agreed(self, mine: StepDecision, method: str) -> StepDecision:
        if not self._decides:
            return CONTINUE
        if not isinstance(mine, StepDecision):
            message = f"{self.name}.{method} returned {type(mine).__name__}"
            raise TrainingError(message, where=self._where, hint="Return a StepDecision; CONTINUE lets the step go on.")
        skips = collectives.maximum(torch.tensor([float(bool(mine.skip))], device=self._device))
        return (mine if mine.skip else StepDecision(f"{self.name} of another rank")) if skips.item() else CONTINUE

    @contextlib.contextmanager
    def _guarded(self, method: str, kind: type[SpecError | TrainingError] = TrainingError) -> Iterator[None]:
        try:
            yield
        except SpecError:
            raise
        except Exception as error:  # a user's code may raise anything
            message = f"{self.name}.{method} raised {type(error).__name__}: {error}"
            raise kind(message, where=self._where, hint="Mend it, or take it out of train.hooks.") from error


def hook_class(path: str, where: str) -> Any:  # noqa: ANN401
    """Import the class ``package.module:Class``.

    Returns:
        A class with the methods of :class:`StepHook`, built from a :class:`HookContext` or from nothing.

    Raises:
        SpecError: it cannot be imported, is no class, or lacks methods.
    """
    cls = import_object(path, where)
    hint = f"Derive it from {_BASE}, whose methods do nothing."
    if not isinstance(cls, type):
        raise SpecError(f"{path} is no class", where=where, hint=hint)
    if missing := [name for name in _METHODS if not callable(getattr(cls, name, None))]:
        raise SpecError(f"{path} lacks the methods {', '.join(missing)}", where=where, hint=hint)
    return cls


def hook_problems(spec: Spec) -> Iterator[Problem]:
    """Problems of the classes in ``train.hooks``, before a worker starts."""
    for i, path in enumerate(spec.train.hooks):
        try:
            hook_class(path, f"train.hooks[{i}]")
        except SpecError as error:
            yield from error.problems
        if path in spec.train.hooks[:i]:
            yield Problem(f"{path} is named twice", f"train.hooks[{i}]")
