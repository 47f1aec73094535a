"""Find the smallest ``prune.amount`` that keeps ``prune.budget``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from radioplat.compression.cost import Cost
from radioplat.errors import SpecError
from radioplat.models.vision_model import VisionModel
from radioplat.spec.schema.prune import PruneBudget, PruneConfig

STEPS = 7  # bisections of the amount: to within 1 %


def within_budget(
    model: VisionModel,
    config: PruneConfig,
    prune: Callable[[PruneConfig], VisionModel],
    cost: Callable[[VisionModel], Cost],
) -> tuple[VisionModel, PruneConfig]:
    """Return the model pruned by the smallest ``amount`` that keeps ``config.budget``, and ``config`` with it.

    Args:
        prune: returns a smaller copy of ``model``.
        cost: of a model, with its latency if the budget has one.

    Raises:
        SpecError: not even the largest amount keeps the budget.
    """
    before = cost(model)
    low, high, amount, best = 0.0, 0.99, 0.99, None  # the largest amount first
    for _ in range(STEPS + 1):
        candidate = replace(config, amount=amount)
        small = prune(candidate)
        if keeps(config.budget, before, cost(small)):
            best, high = (small, candidate), amount
        elif best is None:
            break
        else:
            low = amount
        amount = (low + high) / 2
    if best is None:
        raise SpecError(
            "cannot be kept: with 99 % of its channels removed the backbone still costs more",
            where="prune.budget",
            hint="Name more prune.parts, a smaller prune.granularity, or prune.blocks.",
        )
    return best


def keeps(budget: PruneBudget, before: Cost, after: Cost) -> bool:
    """Return whether ``after`` is within the shares of ``before`` in ``budget``."""
    shares = ((budget.params, "params"), (budget.macs, "macs"), (budget.latency, "latency"))
    return all(share is None or getattr(after, name) <= share * getattr(before, name) for share, name in shares)
