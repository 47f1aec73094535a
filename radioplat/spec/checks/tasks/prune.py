"""Checks of section ``prune``."""

from __future__ import annotations

from collections.abc import Iterator

from radioplat.common.imports import missing_extra
from radioplat.errors import Problem
from radioplat.spec.checks.tasks.engine import backend_packages
from radioplat.spec.checks.tasks.retrain import retrain_problems
from radioplat.spec.checks.tasks.training_task import training_task
from radioplat.spec.checks.unused_fields import unused_fields
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
    """Yield problems of section ``prune``."""
    config = spec.prune
    budget = [name for name, share in vars(config.budget).items() if share is not None]
    if budget and config.mode is PruneMode.threshold:
        message = "a budget determines prune.amount, which mode threshold does not read"
        yield Problem(message, "prune.budget", "Take mode: amount.")
    if config.mode is PruneMode.threshold and config.scope is PruneScope.all:
        yield Problem("mode threshold applies to each layer separately", "prune.scope", "Take scope: layer.")
    if not config.cut and not config.blocks and config.sparsity.type is None:
        known = ", ".join(part.value for part in PrunePart)
        yield Problem("there is nothing to prune", "prune.parts", f"Any of {known}; or prune.blocks.")
    if budget and not config.cut:
        yield Problem("a budget is reached by removing channels", "prune.budget", "Name prune.parts, or leave it out.")
    if config.budget.latency is not None:
        yield from missing_extra("onnx", "a latency, which is that of an engine,", "prune.budget.latency")
        yield from backend_packages(spec)
    if config.reconstruction_images and not config.cut and not config.blocks:
        message = "neither channels nor blocks are removed, so there is nothing to fit again"
        yield Problem(message, "prune.reconstruction_images", "Leave it out.")
    if config.reconstruction_images and PrunePart.width in config.cut:
        message = "blocks of another width cannot give what they gave before"
        yield Problem(message, "prune.reconstruction_images", "Leave it out, or leave width out of prune.parts.")
    yield from _sparsity(config.sparsity)
    yield from _rounds(config)
    yield from retrain_problems(spec, config.retrain, "prune.retrain")
    yield from training_task(spec).check_pruning(config)


def _rounds(config: PruneConfig) -> Iterator[Problem]:
    if config.rounds == 1:
        if config.schedule is not PruneConfig().schedule:
            yield Problem("one round has no schedule", "prune.schedule", "Give prune.rounds, or leave it out.")
        return
    if not config.retrain.wanted:
        hint = "Give prune.retrain.epochs or prune.retrain.steps."
        yield Problem("several rounds need retraining between them", "prune.rounds", hint)
    if config.mode is PruneMode.threshold:
        message = "rounds divide up prune.amount, which mode threshold does not read"
        yield Problem(message, "prune.rounds", "Take mode: amount.")
    if config.sparsity.type is SparsityPattern.two_of_four and not config.cut and not config.blocks:
        hint = "Take prune.rounds: 1, or type: unstructured."
        yield Problem("2:4 sparsity is reached in one round", "prune.rounds", hint)


def _sparsity(config: SparsityConfig) -> Iterator[Problem]:
    where = "prune.sparsity"
    if config.type is None:
        hint = f"{where}.type: {', '.join(pattern.value for pattern in SparsityPattern)}."
        message = "it has no effect without a type"
        yield from unused_fields(config, ("amount", "scope", "exclude"), where, message, hint)
    elif config.type is SparsityPattern.two_of_four:
        yield from unused_fields(config, ("amount",), where, f"2:4 means 0.5, not {config.amount}", "Leave it out.")
        if config.scope is PruneScope.all:
            yield Problem("2:4 applies to each layer separately", f"{where}.scope", "Take scope: layer.")
