"""Contradictions in section ``prune``."""

from __future__ import annotations

from collections.abc import Iterator

from radioplat.errors import Problem
from radioplat.spec.checks.tasks.retrain import retrain_problems
from radioplat.spec.checks.tasks.training_task import training_task
from radioplat.spec.schema.prune import (
    PruneConfig,
    PruneMode,
    PrunePart,
    PruneScope,
    SparsityConfig,
    SparsityPattern,
)
from radioplat.spec.schema.root import Spec


def prune_problems(spec: Spec) -> Iterator[Problem]:
    """What the task ``prune`` cannot do."""
    asked = spec.prune
    budget = [name for name, share in vars(asked.budget).items() if share is not None]
    if budget and asked.mode is PruneMode.threshold:
        yield Problem(
            "a budget finds prune.amount, and mode threshold does not read that", "prune.budget", "Take mode: amount."
        )
    if asked.mode is PruneMode.threshold and asked.scope is PruneScope.all:
        yield Problem("mode threshold looks at each layer alone", "prune.scope", "Take scope: layer.")
    if not asked.cut and not asked.blocks and asked.sparsity.type is None:
        known = ", ".join(part.value for part in PrunePart)
        yield Problem("nothing is named that may go", "prune.parts", f"Any of {known}; or prune.blocks.")
    if budget and not asked.cut:
        yield Problem("a budget is kept by cutting channels", "prune.budget", "Name prune.parts, or leave it out.")
    yield from _sparsity(asked.sparsity)
    yield from _rounds(asked)
    yield from retrain_problems(spec, asked.retrain, "prune.retrain")
    yield from training_task(spec).check_pruning(asked)


def _rounds(asked: PruneConfig) -> Iterator[Problem]:
    if asked.rounds == 1:
        if asked.schedule is not PruneConfig().schedule:
            yield Problem("one round has no schedule", "prune.schedule", "Give prune.rounds, or leave it out.")
        return
    if not asked.retrain.wanted:
        hint = "Give prune.retrain.epochs or prune.retrain.steps."
        yield Problem("rounds without retraining between them are one round", "prune.rounds", hint)
    if asked.mode is PruneMode.threshold:
        yield Problem("a schedule spreads an amount, and mode threshold has none", "prune.rounds", "Take mode: amount.")
    if asked.sparsity.type is SparsityPattern.two_of_four and not asked.cut and not asked.blocks:
        hint = "Take prune.rounds: 1, or type: unstructured."
        yield Problem("2:4 is half of the weights at once", "prune.rounds", hint)


def _sparsity(asked: SparsityConfig) -> Iterator[Problem]:
    where, plain = "prune.sparsity", SparsityConfig()
    if asked.type is None:
        for name in ("amount", "scope", "exclude"):
            if getattr(asked, name) != getattr(plain, name):
                known = ", ".join(pattern.value for pattern in SparsityPattern)
                yield Problem("without a type nothing becomes zero", f"{where}.{name}", f"{where}.type: {known}.")
        return
    if asked.type is SparsityPattern.two_of_four:
        if asked.amount != plain.amount:
            yield Problem(f"2:4 means a half, not {asked.amount}", f"{where}.amount", "Leave it out.")
        if asked.scope is PruneScope.all:
            yield Problem("2:4 looks at four inputs alone", f"{where}.scope", "Take scope: layer.")
