"""Contradictions in the section ``prune`` where a detector is pruned."""

from __future__ import annotations

from collections.abc import Iterator

from radioplat.errors import Problem
from radioplat.spec.schema.prune import PruneConfig, PruneScore


def detector_prune_problems(config: PruneConfig) -> Iterator[Problem]:
    """Yield settings that do not fit: a detector loses channels of its backbone, by their weights, in one round."""
    hint = "Take score: magnitude."
    if config.score is not PruneScore.magnitude:
        yield Problem(f"a detector's channels are not scored by {config.score.value}", "prune.score", hint)
    if config.blocks:
        yield Problem("blocks of a detector's backbone stay", "prune.blocks", "Leave it out, and cut channels.")
    if config.sparsity.type is not None:
        yield Problem("a detector loses channels, not single weights", "prune.sparsity.type", "Leave it out.")
    if config.retrain.wanted:
        hint = "Leave it out, and take the stages prune and retrain of `radioplat compress`."
        yield Problem("a detector is not retrained by prune", "prune.retrain", hint)
