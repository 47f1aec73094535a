"""The milder setting of a stage that took too much."""

from __future__ import annotations

from radioplat.spec.compress import Stage
from radioplat.spec.prune import PruneMode, SparsityPattern
from radioplat.spec.root import Spec

STEP = 0.75  # of what went, the share that goes the next time


def milder(spec: Spec, stage: Stage, attempt: int) -> list[str]:
    """Overrides of ``spec`` for retry number ``attempt``, from 1; empty where there is nothing milder."""
    return _prune(spec, STEP**attempt) if stage is Stage.prune else []


def _prune(spec: Spec, share: float) -> list[str]:
    asked = spec.prune
    budgets = {name: kept for name, kept in vars(asked.budget).items() if kept is not None}
    found = [f"prune.budget.{name}={1 - (1 - kept) * share:.6g}" for name, kept in budgets.items()]
    if asked.mode is PruneMode.threshold:
        found.append(f"prune.threshold={asked.threshold * share:.6g}")
    elif not budgets and asked.cut:
        found.append(f"prune.amount={asked.amount * share:.6g}")
    if asked.blocks:
        found.append(f"prune.blocks={int(asked.blocks * share)}")
    if asked.sparsity.type is SparsityPattern.unstructured:
        found.append(f"prune.sparsity.amount={asked.sparsity.amount * share:.6g}")
    return found
