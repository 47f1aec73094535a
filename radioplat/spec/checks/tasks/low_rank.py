"""Contradictions in section ``low_rank``."""

from __future__ import annotations

from collections.abc import Iterator

from radioplat.errors import Problem
from radioplat.spec.checks.tasks.retrain import retrain_problems
from radioplat.spec.schema.retrain import RetrainMode
from radioplat.spec.schema.root import Spec


def low_rank_problems(spec: Spec) -> Iterator[Problem]:
    """What the task ``low_rank`` cannot do."""
    asked = spec.low_rank
    given = [name for name in ("energy", "rank", "ratio") if getattr(asked, name) is not None]
    if len(given) != 1:
        what = f"{' and '.join(given)} contradict each other" if given else "how narrow?"
        yield Problem(what, "low_rank", "Give one of low_rank.energy, low_rank.rank and low_rank.ratio.")
    if asked.retrain.mode is RetrainMode.weight_rewind:
        hint = "Take finetune or lr_rewind."
        yield Problem("factors have no earlier values to go back to", "low_rank.retrain.mode", hint)
    else:
        yield from retrain_problems(spec, asked.retrain, "low_rank.retrain")
