"""When a loss counts as a spike, and what is remembered of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from radioplat.errors import SpecError, TrainingError
from radioplat.spec.loading.load import load_spec
from radioplat.spec.schema.train import SpikeAction, SpikeConfig
from radioplat.training.guards.loss_spikes import SpikeGuard


def guard(action: str = "rollback", losses=(), count: int = 0, **config) -> SpikeGuard:
    return SpikeGuard(SpikeConfig(SpikeAction(action), **{"factor": 2.0, "window": 3, **config}), losses, count)


def test_a_spike_is_above_factor_times_the_median_of_a_full_window():
    it = guard()
    for loss in (1.0, 5.0):
        it.counted(loss)
        assert not it.is_spike(1e9)  # nothing to compare with yet
    it.counted(1.2)
    assert not it.is_spike(2.4) and it.is_spike(2.41)
    it.counted(6.0)  # the oldest goes: 5, 1.2, 6
    assert not it.is_spike(10.0) and it.is_spike(10.1)
    assert not it.is_spike(float("nan")) and not it.is_spike(float("inf"))  # those have a policy of their own


def test_nothing_is_looked_for_unless_asked():
    it = guard("none", losses=[1.0, 1.0, 1.0])
    assert not it.is_spike(100.0)
    it.counted(3.0)
    it.consumed(0, np.arange(2), np.arange(2))
    assert it.trail == [] and not it.skips and not it.rolls_back


@given(st.lists(st.floats(0.1, 10), max_size=20), st.floats(0.1, 100), st.integers(0, 20))
def test_a_resumed_guard_judges_alike(losses, loss, cut):
    whole, first = guard(), guard()
    for value in losses:
        whole.counted(value)
    for value in losses[:cut]:
        first.counted(value)
    second = guard(losses=first.losses)
    for value in losses[cut:]:
        second.counted(value)
    assert second.is_spike(loss) == whole.is_spike(loss) and len(whole.losses) <= 3


def test_the_trail_reaches_back_to_the_checkpoint_before_the_last():
    it = guard()
    for step in range(6):
        it.consumed(step, np.array([step]), np.array([10 * step]))
        if step + 1 in (2, 4):
            it.saved(step + 1)
    assert [step for step, _, _ in it.trail] == [2, 3, 4, 5]


def test_one_roll_back_too_many_ends_the_run():
    it = guard(count=1, max_rollbacks=2)
    assert it.rolled(7, 9.0) == 2
    with pytest.raises(TrainingError, match="step 8.*rolled back 2 times") as caught:
        it.rolled(8, 9.0)
    assert caught.value.problems[0].where == "train.spike.max_rollbacks"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("spike.factor", 1.0),
        ("spike.factor", ".nan"),
        ("spike.window", 1),
        ("spike.max_rollbacks", -1),
        ("hang_timeout_s", 0.0),
        ("hang_timeout_s", ".inf"),
    ],
)
def test_what_makes_no_sense_is_named(field, value):
    with pytest.raises(SpecError, match=f"^train.{field}: must be "):
        load_spec({}, [f"train.{field}={value}"])


def test_unknown_actions_are_refused():
    with pytest.raises(SpecError, match="spike.action"):
        load_spec({"train": {"spike": {"action": "panic"}}})
