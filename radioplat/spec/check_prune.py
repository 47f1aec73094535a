"""Contradictions in section ``prune``."""

from __future__ import annotations

from collections.abc import Iterator

from radioplat.errors import Problem
from radioplat.spec.prune import PruneMode, PrunePart, PruneScope
from radioplat.spec.root import Spec


def prune_problems(spec: Spec) -> Iterator[Problem]:
    """What the task ``prune`` cannot do."""
    asked = spec.prune
    for name, least in (("granularity", 1), ("score_batches", 1), ("blocks", 0)):
        if getattr(asked, name) < least:
            yield Problem(f"must be at least {least}, not {getattr(asked, name)}", f"prune.{name}")
    for name in ("amount", "threshold"):
        if not 0 <= getattr(asked, name) < 1:
            hint = "1 would leave nothing." if getattr(asked, name) >= 1 else ""
            yield Problem(f"must be at least 0 and below 1, not {getattr(asked, name)}", f"prune.{name}", hint)
    budget = {name: share for name, share in vars(asked.budget).items() if share is not None}
    for name, share in budget.items():
        if not 0 < share < 1:
            yield Problem(f"must be between 0 and 1, a share of today's, not {share}", f"prune.budget.{name}")
    if budget and asked.mode is PruneMode.threshold:
        yield Problem(
            "a budget finds prune.amount, and mode threshold does not read that", "prune.budget", "Take mode: amount."
        )
    if asked.mode is PruneMode.threshold and asked.scope is PruneScope.all:
        yield Problem("mode threshold looks at each layer alone", "prune.scope", "Take scope: layer.")
    if not asked.parts and not asked.blocks:
        known = ", ".join(part.value for part in PrunePart)
        yield Problem("nothing is named that may go", "prune.parts", f"Any of {known}; or prune.blocks.")
