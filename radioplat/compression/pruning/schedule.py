"""How much has gone after each round of iterative pruning."""

from __future__ import annotations

from radioplat.spec.schema.prune import PruneSchedule


def gone(number: int, rounds: int, schedule: PruneSchedule, final: float) -> float:
    """The share that has gone after round ``number`` of ``rounds``, from 0 before the first to ``final`` in [0, 1).

    ``linear``: the same share of the whole each time. ``cubic``: ``final (1 - (1 - i/n)^3)``, most of it early (Zhu and
    Gupta 2017). ``geometric``: each time the same share of what is left (Frankle and Carbin 2019).
    """
    if number == rounds:
        return final  # to the bit
    share = number / rounds
    if schedule is PruneSchedule.linear:
        return final * share
    if schedule is PruneSchedule.cubic:
        return final * (1 - (1 - share) ** 3)
    return 1 - (1 - final) ** share


def of_what_is_left(before: float, after: float) -> float:
    """The share of what is left once ``before`` has gone that goes on the way to ``after``; both of the whole."""
    return 1 - (1 - after) / (1 - before)
