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
from radioplat.training.hooks.step_record import CONTINUE, StepDecision, StepRecord

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


def passes(it: NonFiniteGuard, step: int, batch: Batch, values: dict, last: bool = False) -> bool:
    """One micro-batch of the present step."""
    it.begin_micro_batch(step, batch)
    return it.losses(step, batch, values, last) == CONTINUE


def ended(it: NonFiniteGuard, step: int, decision: StepDecision = CONTINUE, moved: bool = False) -> None:
    it.end_step(StepRecord(step, 0.1, decision=decision, moved=moved))


def test_finite_losses_pass(guard):
    it = guard("fail")
    assert passes(it, 0, batch(1, 2), losses(1e30)) and not it.tripped and it.terms == []


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_it_trips_and_names_the_terms_of_the_micro_batch(guard, bad):
    it = guard()
    it.begin_step(7)
    assert passes(it, 7, batch(1, 2), losses())
    assert not passes(it, 7, batch(3, 4), losses(a=bad)) and it.tripped
    assert it.terms == ["loss", "loss/a/summary"]
    it.begin_micro_batch(7, batch(5))  # taken from the stream, not looked at
    assert it.terms == []
    it.begin_step(8)
    assert not it.tripped


def trip(it: NonFiniteGuard, step: int, **values: float) -> None:
    it.begin_step(step)
    assert not passes(it, step, batch(5), losses(**values))
    ended(it, step, StepDecision("not finite"))


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
    guard.begin_step(0)
    assert not passes(guard, 0, batch(1), {"loss": torch.tensor(NAN), "accuracy": torch.tensor(0.0)})
    ended(guard, 0, StepDecision("not finite"))


def test_a_penalty_is_no_teacher(guard):
    it = guard("quarantine_teacher")
    it.begin_step(0)
    assert not passes(it, 0, batch(1), {**losses(b=float("nan")), "loss/regularizer": torch.tensor(float("inf"))})
    ended(it, 0, StepDecision("not finite"))
    assert it._objective.quarantined == {"b"}


def test_weight_of_any_micro_batch_counts_for_the_step(guard):
    it, ids = guard(), np.arange(2)
    empty = Batch(0, {}, ids, ids, np.zeros(2, np.float32), ids)
    it.begin_step(0)
    assert passes(it, 0, empty, losses()) and not it.has_weight
    assert passes(it, 0, batch(1, 2), losses()) and passes(it, 0, empty, losses(), last=True) and it.has_weight
    it.begin_step(1)
    assert not it.has_weight


def test_a_step_without_weight_is_skipped_and_such_steps_in_a_row_are_counted(guard):
    it, ids = guard(), np.arange(2)
    empty = Batch(0, {}, ids, ids, np.zeros(2, np.float32), ids)
    for step, expected in enumerate(("none of its samples has weight", "none .* weight \\(2 such steps in a row\\)")):
        it.begin_step(step)
        assert it.losses(step, empty, losses(), last=False) == CONTINUE
        decision = it.losses(step, empty, losses(), last=True)
        assert re.fullmatch(expected, decision.skip)
        ended(it, step, decision)
    it.begin_step(2)
    assert passes(it, 2, batch(1), losses(), last=True)
    ended(it, 2, moved=True)
    it.begin_step(3)
    assert it.losses(3, empty, losses(), last=True).skip == "none of its samples has weight"
