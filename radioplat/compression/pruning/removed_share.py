"""Schedules of iterative pruning: the removed share after each round."""

from __future__ import annotations

from radioplat.spec.schema.prune import PruneSchedule


def removed_share(number: int, rounds: int, schedule: PruneSchedule, final: float) -> float:
    """Return the share of the original units that is removed after round ``number``; ``final``, in [0, 1), after the
    last.

    ``linear``: each round removes the same share of the original. ``cubic``: ``final (1 - (1 - i/n)^3)``, most of it
    early (Zhu and Gupta 2017). ``geometric``: each round removes the same share of the rest (Frankle and Carbin 2019).
    """
    if number == rounds:
        return final  # exactly
    share = number / rounds
    if schedule is PruneSchedule.linear:
        return final * share
    if schedule is PruneSchedule.cubic:
        return final * (1 - (1 - share) ** 3)
    return 1 - (1 - final) ** share


def share_of_rest(before: float, after: float) -> float:
    """Return the share of the rest that a round removes, from the shares of the original removed before and after."""
    return 1 - (1 - after) / (1 - before)
