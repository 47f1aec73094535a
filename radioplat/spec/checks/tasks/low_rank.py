"""Checks of section ``low_rank``."""

from __future__ import annotations

from collections.abc import Iterator

from radioplat.errors import Problem
from radioplat.spec.checks.tasks.retrain import retrain_problems
from radioplat.spec.schema.retrain import RetrainMode
from radioplat.spec.schema.root import Spec


def low_rank_problems(spec: Spec) -> Iterator[Problem]:
    """Yield problems of section ``low_rank``."""
    config = spec.low_rank
    given = [name for name in ("energy", "rank", "ratio") if getattr(config, name) is not None]
    if len(given) != 1:
        message = f"{' and '.join(given)} contradict each other" if given else "no rank is given"
        yield Problem(message, "low_rank", "Give one of low_rank.energy, low_rank.rank and low_rank.ratio.")
    if config.retrain.mode is RetrainMode.weight_rewind:
        hint = "Take finetune or lr_rewind."
        yield Problem("low-rank factors have no earlier values", "low_rank.retrain.mode", hint)
    else:
        yield from retrain_problems(spec, config.retrain, "low_rank.retrain")
