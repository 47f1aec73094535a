"""When a loss counts as a spike, and what is remembered of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from radioplat.data.batch import Batch
from radioplat.errors import SpecError, TrainingError
from radioplat.spec.loading.load import load_spec
from radioplat.spec.schema.train import SpikeAction, SpikeConfig
from radioplat.training.guards.loss_spikes import SpikeGuard
from radioplat.training.hooks.step_record import CONTINUE, StepDecision, StepRecord


def guard(action: str = "rollback", losses=(), count: int = 0, **config) -> SpikeGuard:
    it = SpikeGuard(SpikeConfig(SpikeAction(action), **{"factor": 2.0, "window": 3, **config}))
    it.load_state_dict({"recent_losses": losses, "rollbacks": count})
    return it


def batch(*ids: int) -> Batch:
    ids = np.array(ids)
    return Batch(0, {}, ids, ids, np.ones(len(ids), np.float32), ids)


def test_a_spike_is_above_factor_times_the_median_of_a_full_window():
    it = guard()
    for loss in (1.0, 5.0):
        assert not it.must_roll_back(loss)
        assert not it.is_spike(1e9)  # nothing to compare with yet
    assert not it.must_roll_back(1.2)
    assert not it.is_spike(2.4) and it.is_spike(2.41)
    it = guard(losses=[1.0, 5.0, 1.2, 6.0])  # the oldest does not count: 5, 1.2, 6
    assert not it.is_spike(10.0) and it.is_spike(10.1)
    assert not it.is_spike(float("nan")) and not it.is_spike(float("inf"))  # those have a policy of their own


def test_nothing_is_looked_for_unless_asked():
    it = guard("none", losses=[1.0, 1.0, 1.0])
    assert not it.is_spike(100.0) and not it.must_roll_back(100.0)
    it.end_micro_batch(0, batch(0, 1))
    assert it.trail == [] and not it.rolls_back
    assert it.before_update(StepRecord(0, 0.1, {"loss": 100.0})) == CONTINUE


def test_a_spike_of_the_whole_step_is_skipped_before_the_weights_move():
    it = SpikeGuard(SpikeConfig(SpikeAction.skip_step, factor=2.0, window=3))
    it.load_state_dict({"recent_losses": [1.0, 1.0, 1.0], "rollbacks": 0})
    assert it.before_update(StepRecord(0, 0.1, {"loss": 2.0})) == CONTINUE
    assert it.before_update(StepRecord(0, 0.1, {"loss": 2.1})) == StepDecision("its loss jumped", "loss_spike")
    assert not it.must_roll_back(2.0)


@given(st.lists(st.floats(0.1, 10), max_size=20), st.floats(0.1, 100), st.integers(0, 20))
def test_a_resumed_guard_judges_alike(losses, loss, cut):
    whole, first = guard(), guard()
    for value in losses:
        whole.must_roll_back(value)
    for value in losses[:cut]:
        first.must_roll_back(value)
    state = first.state_dict()
    second = guard(losses=state["recent_losses"], count=state["rollbacks"])
    for value in losses[cut:]:
        second.must_roll_back(value)
    assert second.is_spike(loss) == whole.is_spike(loss) and len(whole.state_dict()["recent_losses"]) <= 3


def test_the_trail_reaches_back_to_the_checkpoint_before_the_last():
    it = guard()
    for step in range(6):
        it.end_micro_batch(step, batch(step))
        if step + 1 in (2, 4):
            it.saved(step + 1)
    assert [step for step, _, _ in it.trail] == [2, 3, 4, 5]


def test_one_roll_back_too_many_ends_the_run():
    it = guard(count=1, max_rollbacks=2)
    back = it.roll_back(StepRecord(7, 0.1, {"loss": 9.0}), {"a"})
    assert (back.step, back.count, back.loss, back.quarantined) == (8, 2, 9.0, {"a"})
    with pytest.raises(TrainingError, match="step 8.*rolled back 2 times") as caught:
        it.roll_back(StepRecord(8, 0.1, {"loss": 9.0}), ())
    assert caught.value.problems[0].where == "train.spike.max_rollbacks" and caught.value.agreed


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
