"""Checks of a section ``retrain``."""

from __future__ import annotations

from collections.abc import Iterator

from radioplat.errors import Problem
from radioplat.spec.checks.tasks.training_run import check
from radioplat.spec.checks.tasks.training_task import command_of
from radioplat.spec.checks.unused_fields import unused_fields
from radioplat.spec.schema.retrain import RetrainConfig, RetrainMode
from radioplat.spec.schema.root import Spec


def retrain_problems(spec: Spec, config: RetrainConfig, where: str) -> Iterator[Problem]:
    """Yield problems of a retraining.

    Args:
        config: the section.
        where: its field path, for example ``prune.retrain``.
    """
    if not config.wanted:
        hint = f"Give {where}.epochs or {where}.steps."
        yield from unused_fields(config, vars(config), where, "nothing is retrained", hint)
        return
    if config.epochs is not None and config.steps is not None:
        yield Problem(f"{where}.epochs sets the length too", f"{where}.steps", "Leave one of the two out.")
    rewinds = config.mode is RetrainMode.weight_rewind
    if rewinds and config.rewind_to is None:
        hint = "Give a model_epoch_... folder of the run that trained the student."
        yield Problem("mode weight_rewind needs an earlier checkpoint", f"{where}.rewind_to", hint)
    if config.rewind_to is not None and not rewinds:
        yield Problem("only mode weight_rewind reads it", f"{where}.rewind_to", "Leave it out.")
    yield from check(spec, command_of(spec))
