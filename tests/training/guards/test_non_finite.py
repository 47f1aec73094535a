"""What a NaN in a loss leads to, by policy; and a step without weight."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from radioplat.data.batch import Batch
from radioplat.errors import TrainingError
from radioplat.models.heads import HeadArchitecture
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.objectives.distill import ClassifyObjective, DistillObjective
from radioplat.spec.loading.load import load_spec
from radioplat.spec.resolved.teacher import resolve_teachers
from radioplat.spec.schema.train import NonFinitePolicy, TrainConfig
from radioplat.training.guards.non_finite import NonFiniteGuard
from radioplat.training.hooks.step_hook import StepHooks
from radioplat.training.hooks.step_record import CONTINUE, StepDecision, StepRecord
from radioplat.training.hooks.step_sums import StepSums

SPEC = load_spec({"distill": {"loss_type": "CS", "teacher": [{"name": "a"}, {"name": "b"}]}})
ARCHITECTURE = StudentArchitecture("test_resnet", heads=(HeadArchitecture("a", 4), HeadArchitecture("b", 4)))


@pytest.fixture(scope="module")
def student() -> Student:
    return Student(ARCHITECTURE)


@pytest.fixture
def guard(student):
    """guard(policy, limit=20) -> a guard over a module of teachers a and b."""

    def make(policy: str = "skip_step", limit: int = 20) -> NonFiniteGuard:
        config = TrainConfig(non_finite=NonFinitePolicy(policy), max_non_finite_steps=limit)
        return NonFiniteGuard(config, DistillObjective(student, resolve_teachers(SPEC), "224"))

    return make


def batch(*ids: int) -> Batch:
    ids = np.array(ids, dtype=np.int64)
    return Batch(0, {}, ids, ids, np.ones(len(ids), np.float32), -np.ones(len(ids), np.int64))


def losses(a: float = 1.0, b: float = 1.0) -> dict[str, torch.Tensor]:
    terms = {"loss/a/summary": torch.tensor(a), "loss/b/summary": torch.tensor(b)}
    return {"loss": sum(terms.values()), **terms}


def decided(it: NonFiniteGuard, step: int, *micro_batches: tuple[Batch, dict]) -> tuple[StepRecord, StepSums]:
    """One step of these micro-batches, up to the decision before its update."""
    hooks, sums, record = StepHooks([it]), StepSums(torch.device("cpu")), StepRecord(step, 0.1)
    sums.begin()
    hooks.begin_step(step)
    for number, (samples, values) in enumerate(micro_batches):
        hooks.begin_micro_batch(step, samples)
        sums.add(values, 1.0, number)
    record.share(sums, hooks.sums())
    record.reduce(sums, len(micro_batches))
    record.decision = hooks.before_update(record)
    return record, sums


def ended(it: NonFiniteGuard, step: int, decision: StepDecision = CONTINUE, moved: bool = False) -> None:
    it.end_step(StepRecord(step, 0.1, decision=decision, moved=moved))


def test_finite_losses_pass(guard):
    it = guard("fail")
    record, _ = decided(it, 0, (batch(1, 2), losses(1e30)))
    assert not record.skipped and not it.tripped and record.not_finite == []


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_it_trips_and_names_the_terms_of_the_micro_batch(guard, bad):
    it = guard()
    record, sums = decided(it, 7, (batch(1, 2), losses()), (batch(3, 4), losses(a=bad)), (batch(5), losses()))
    assert record.skipped and it.tripped and record.not_finite == ["loss", "loss/a/summary"]
    assert [sums.not_finite_in(number) for number in range(3)] == [[], ["loss", "loss/a/summary"], []]
    it.begin_step(8)
    assert not it.tripped


def trip(it: NonFiniteGuard, step: int, **values: float) -> None:
    record, _ = decided(it, step, (batch(5), losses(**values)))
    assert record.skipped
    it.end_step(record)


NAN = float("nan")


def test_skip_step_goes_on_until_too_many_in_a_row(guard):
    it = guard("skip_step", limit=3)
    trip(it, 0, a=NAN)
    trip(it, 1, a=NAN)
    it.begin_step(2)
    ended(it, 2, moved=True)
    trip(it, 3, a=NAN)
    trip(it, 4, a=NAN)
    with pytest.raises(TrainingError, match="3 steps in a row.*step 5.*loss/a/summary") as caught:
        trip(it, 5, a=NAN)
    assert caught.value.problems[0].where == "train.max_non_finite_steps"


def test_gradients_that_overflow_end_the_run_when_it_does_not_stop(guard):
    it = guard("skip_step", limit=3)
    for step, moved in enumerate((False, False, True, False, False)):
        it.begin_step(step)
        ended(it, step, moved=moved)
    with pytest.raises(TrainingError, match="gradients of 3 steps in a row.*step 5") as caught:
        ended(it, 5)
    assert caught.value.problems[0].where == "train.max_non_finite_steps"


def test_fail_names_step_and_term(guard):
    with pytest.raises(TrainingError, match="step 4.*loss/b/summary") as caught:
        trip(guard("fail"), 4, b=NAN)
    assert caught.value.problems[0].where == "train.non_finite"


def test_quarantine_takes_the_teacher_out_and_ends_with_the_last(guard):
    it = guard("quarantine_teacher")
    module = it._objective
    trip(it, 0, a=NAN)
    assert module.quarantined == {"a"}
    with pytest.raises(TrainingError, match="no teacher is left"):
        trip(it, 1, b=NAN)


@pytest.mark.parametrize("policy", ["skip_step", "quarantine_teacher"])
def test_training_on_labels_has_no_teacher_to_take_out(policy, student):
    guard = NonFiniteGuard(TrainConfig(non_finite=NonFinitePolicy(policy)), ClassifyObjective(student, "224"))
    record, _ = decided(guard, 0, (batch(1), {"loss": torch.tensor(NAN), "accuracy": torch.tensor(0.0)}))
    assert record.not_finite == ["loss"]
    guard.end_step(record)


def test_a_penalty_is_no_teacher(guard):
    it = guard("quarantine_teacher")
    record, _ = decided(it, 0, (batch(1), {**losses(b=NAN), "loss/regularizer": torch.tensor(float("inf"))}))
    it.end_step(record)
    assert it._objective.quarantined == {"b"}


def test_weight_of_any_micro_batch_counts_for_the_step(guard):
    it, ids = guard(), np.arange(2)
    empty = Batch(0, {}, ids, ids, np.zeros(2, np.float32), ids)
    assert not decided(it, 0, (empty, losses()), (batch(1, 2), losses()), (empty, losses()))[0].skipped
    assert decided(it, 1, (empty, losses()))[0].skipped


def test_a_step_without_weight_is_skipped_and_such_steps_in_a_row_are_counted(guard):
    it, ids = guard(), np.arange(2)
    empty = Batch(0, {}, ids, ids, np.zeros(2, np.float32), ids)
    for step, expected in enumerate(("none of its samples has weight", "none .* weight \\(2 such steps in a row\\)")):
        record, _ = decided(it, step, (empty, losses()), (empty, losses()))
        assert re.fullmatch(expected, record.decision.skip)
        it.end_step(record)
    record, _ = decided(it, 2, (batch(1), losses()))
    assert not record.skipped
    ended(it, 2, moved=True)
    assert decided(it, 3, (empty, losses()))[0].decision.skip == "none of its samples has weight"


def test_steps_without_weight_end_the_run_as_steps_that_are_not_finite_do(guard):
    """What has no weight need not be a bad sample: images of one colour are left out, or all may be bad by the spec."""
    it = guard("skip_step", limit=3)
    nothing = batch(1, 2)
    nothing.weight[:] = 0
    for step, samples in enumerate((nothing, nothing, batch(1, 2), nothing, nothing)):
        record, _ = decided(it, step, (samples, losses()))
        assert record.skipped == (samples is nothing)
        it.end_step(record)
    record, _ = decided(it, 5, (nothing, losses()))
    with pytest.raises(TrainingError, match="3 steps in a row had no sample with weight, the last is step 5") as found:
        it.end_step(record)
    assert found.value.problems[0].where == "train.max_non_finite_steps"
