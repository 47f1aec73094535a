"""Checks of section ``prune`` for a detector."""

from __future__ import annotations

from collections.abc import Iterator

from radioplat.errors import Problem
from radioplat.spec.schema.prune import PruneConfig, PruneScore


def detector_prune_problems(config: PruneConfig) -> Iterator[Problem]:
    """Yield unsupported settings: only channels of the backbone are removed, by magnitude, in one round."""
    if config.score is not PruneScore.magnitude:
        message = f"score {config.score.value} is not supported for a detector"
        yield Problem(message, "prune.score", "Take score: magnitude.")
    if config.blocks:
        message = "blocks of a detector's backbone cannot be removed"
        yield Problem(message, "prune.blocks", "Leave it out, and prune channels.")
    if config.reconstruction_images:
        message = "the blocks of a detector's backbone cannot be fitted again"
        yield Problem(message, "prune.reconstruction_images", "Leave it out.")
    if config.sparsity.type is not None:
        message = "only channels of a detector can be pruned, not single weights"
        yield Problem(message, "prune.sparsity.type", "Leave it out.")
    if config.retrain.wanted:
        hint = "Leave it out, and use the stages prune and retrain of `radioplat compress`."
        yield Problem("task prune does not retrain a detector", "prune.retrain", hint)
