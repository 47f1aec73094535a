"""Import and call users' step hooks, which ``train.hooks`` names by import path."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from radioplat.common import collectives
from radioplat.common.imports import import_object
from radioplat.errors import Problem, SpecError, TrainingError, problems_of
from radioplat.objectives.objective import Objective
from radioplat.spec.schema.root import Spec
from radioplat.training.hooks.step_hook import StepHook
from radioplat.training.hooks.step_record import StepDecision

_METHODS = sorted(name for name, _ in inspect.getmembers(StepHook, inspect.isfunction))
_DECISIONS = ("losses", "before_update")
_BASE = f"{StepHook.__module__}.{StepHook.__name__}"


@dataclass(frozen=True)
class HookContext:
    """Constructor argument of a user's hook, on each rank.

    Attributes:
        objective: the module that is trained; ``objective.student`` is the model. From ZeRO stage 1 on its weights are
            the copies used in forward, not the fp32 master weights; at stage 3 each rank has a part of them.
        folder: the task's results folder.
    """

    spec: Spec
    objective: Objective
    rank: int
    world_size: int
    device: torch.device
    folder: Path


class OwnHook(StepHook):
    """Call a user's hook; add its name and the spec field to errors, and make its decisions equal on all ranks.

    Raises:
        SpecError: the hook cannot be imported or constructed, or lacks methods.
    """

    def __init__(self, path: str, where: str, context: HookContext) -> None:
        self.name, self._where, self._device = path, where, context.device
        cls = hook_class(path, where)
        build = cls if cls.__init__ is object.__init__ else partial(cls, context)
        hook = self._guarded("__init__", build, SpecError)()
        calls = {method: getattr(hook, method) for method in _METHODS}
        calls["figures"] = lambda: {str(name): float(value) for name, value in hook.figures().items()}
        calls["sums"] = lambda: {str(name): float(value) for name, value in hook.sums().items()}
        calls["state_dict"] = lambda: _storable(hook.state_dict())
        for method, call in calls.items():
            guarded = self._guarded(method, call)
            decides = method in _DECISIONS and getattr(cls, method) is not getattr(StepHook, method)
            setattr(self, method, self._agreed(method, guarded) if decides else guarded)

    def _guarded(
        self, method: str, call: Callable[..., Any], kind: type[SpecError | TrainingError] = TrainingError
    ) -> Callable[..., Any]:
        def guarded(*arguments: Any) -> Any:  # noqa: ANN401
            try:
                return call(*arguments)
            except Exception as error:  # a user's code may raise anything
                message = f"{self.name}.{method} raised {type(error).__name__}: {error}"
                raise kind(message, where=self._where, hint="Mend it, or take it out of train.hooks.") from error

        return guarded

    def _agreed(self, method: str, call: Callable[..., Any]) -> Callable[..., StepDecision]:
        """Return a function that calls ``call`` and skips the step on all ranks if the hook of any rank skips it."""

        def agreed(*arguments: Any) -> StepDecision:  # noqa: ANN401
            mine = call(*arguments)
            if not isinstance(mine, StepDecision):
                message, hint = f"{self.name}.{method} returned {type(mine).__name__}", "Return a StepDecision."
                raise TrainingError(message, where=self._where, hint=hint)
            skips = collectives.maximum(torch.tensor([float(bool(mine.skip))], device=self._device))
            return mine if mine.skip or not skips.item() else StepDecision(f"{self.name} of another rank")

        return agreed


def _storable(state: dict[str, Any]) -> dict[str, Any]:
    """Return ``state``; raise TypeError if it has values other than tensors and JSON values."""
    json.dumps({name: value for name, value in state.items() if not isinstance(value, torch.Tensor)})
    return state


def hook_class(path: str, where: str) -> Any:  # noqa: ANN401
    """Import the class ``package.module:Class``.

    Returns:
        A class with the methods of :class:`StepHook`, whose constructor takes a :class:`HookContext` or nothing.

    Raises:
        SpecError: it cannot be imported, is not a class, or lacks methods.
    """
    cls = import_object(path, where)
    hint = f"Derive it from {_BASE}, whose methods do nothing."
    if not isinstance(cls, type):
        raise SpecError(f"{path} is no class", where=where, hint=hint)
    if missing := [name for name in _METHODS if not callable(getattr(cls, name, None))]:
        raise SpecError(f"{path} lacks the methods {', '.join(missing)}", where=where, hint=hint)
    return cls


def hook_problems(spec: Spec) -> Iterator[Problem]:
    """Yield the problems of the classes in ``train.hooks``; called before workers start."""
    for i, path in enumerate(spec.train.hooks):
        yield from problems_of(hook_class, path, f"train.hooks[{i}]")
        if path in spec.train.hooks[:i]:
            yield Problem(f"{path} is named twice", f"train.hooks[{i}]")
