"""Contradictions in a section ``retrain``."""

from __future__ import annotations

from collections.abc import Iterator

from radioplat.errors import Problem
from radioplat.spec.checks.tasks.run import check
from radioplat.spec.checks.tasks.training_task import command_of
from radioplat.spec.schema.retrain import RetrainConfig, RetrainMode
from radioplat.spec.schema.root import Spec


def retrain_problems(spec: Spec, asked: RetrainConfig, where: str) -> Iterator[Problem]:
    """What cannot be retrained so.

    Args:
        where: the section's path: ``prune.retrain``.
    """
    if not asked.wanted:
        for name, plain in vars(RetrainConfig()).items():
            if getattr(asked, name) != plain:
                yield Problem("nothing is retrained", f"{where}.{name}", f"Give {where}.epochs or {where}.steps.")
        return
    if asked.epochs is not None and asked.steps is not None:
        yield Problem(f"{where}.epochs says how long, too", f"{where}.steps", "Leave one of the two out.")
    rewinds = asked.mode is RetrainMode.weight_rewind
    if rewinds and asked.rewind_to is None:
        hint = "Give a model_epoch_... folder of the run that the student is from."
        yield Problem("weights are rewound to an earlier checkpoint", f"{where}.rewind_to", hint)
    if asked.rewind_to is not None and not rewinds:
        yield Problem("only mode weight_rewind reads it", f"{where}.rewind_to", "Leave it out.")
    yield from check(spec, command_of(spec))
