"""How much goes in which round."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radioplat.compression.pruning.removed_share import removed_share as removed
from radioplat.compression.pruning.removed_share import share_of_rest
from radioplat.spec.schema.prune import PruneSchedule

SCHEDULES = st.sampled_from(list(PruneSchedule))


@given(st.integers(1, 12), SCHEDULES, st.floats(0, 0.99))
def test_rounds_add_up(rounds, schedule, final):
    """What is left after each round's share of what was left is what the schedule says of the whole."""
    left, before = 1.0, 0.0
    for number in range(1, rounds + 1):
        after = removed(number, rounds, schedule, final)
        assert before - 1e-12 <= after <= final + 1e-12
        left *= 1 - share_of_rest(before, after)
        assert left == pytest.approx(1 - after)
        before = after
    assert before == final


@given(st.integers(2, 12), st.floats(0.05, 0.95))
def test_what_sets_them_apart(rounds, final):
    steps = {
        s: [removed(i + 1, rounds, s, final) - removed(i, rounds, s, final) for i in range(rounds)]
        for s in PruneSchedule
    }
    assert steps[PruneSchedule.linear] == [pytest.approx(final / rounds)] * rounds
    assert steps[PruneSchedule.cubic] == sorted(steps[PruneSchedule.cubic], reverse=True)
    shares = [
        share_of_rest(*(removed(i + k, rounds, PruneSchedule.geometric, final) for k in (0, 1))) for i in range(rounds)
    ]
    assert shares == [pytest.approx(shares[0])] * rounds
