"""Costs of the teachers: what a record counts, and what the meter adds up."""

from __future__ import annotations

import dataclasses
import time

import numpy as np
import pytest
import torch

from radioplat.spec.schema.cluster import ClusterConfig
from radioplat.teachers.serving.client import Held
from radioplat.teachers.serving.transport import Packed
from radioplat.tracking.teacher_cost import Prices, TeacherCost
from radioplat.training.accounting.cost_meter import CostMeter
from radioplat.training.hooks.step_record import StepRecord
from radioplat.training.hooks.step_sums import StepSums


class Occupies:
    """A client of which the meter sees only what it occupies."""

    def __init__(self, *held: float) -> None:
        self.now = Held(*held)

    def held(self) -> Held:
        return self.now


def answer(images: int, seconds: float, cached: tuple[int, int] | None = None) -> Packed:
    """Summary of 3 numbers, map of 2 x 2 x 5, logits of 7: 60 bytes an image."""
    summary, spatial = np.zeros((images, 3), np.uint16), np.zeros((images, 2, 2, 5), np.uint16)
    return Packed(summary, spatial, {"logits": np.zeros((images, 7), np.uint16)}, seconds, cached)


def reduced(*answers: tuple[str, Packed]) -> StepRecord:
    record = StepRecord(0, 0.1)
    for name, packed in answers:
        record.answered(name, packed)
    sums = StepSums(torch.device("cpu"))
    record.share(sums, {})
    record.reduce(sums, 1)
    return record


def test_a_record_counts_answers():
    record = reduced(("b", answer(4, 0.5)), ("a", answer(4, 0.25, (1, 3))), ("b", answer(2, 0.25)))
    assert record.teacher_seconds == {"a": 0.25, "b": 0.75}
    assert record.received == {"a": (4, 240), "b": (6, 360)}
    assert record.cached == {"a": (1, 3)}


def test_the_costs_of_two_steps():
    clients = {"a": Occupies(3, 0.5, 2.0), "b": Occupies(1, 0.0, 1.0)}
    meter = CostMeter(clients, ClusterConfig(gpu_hour_price=4.0), {})
    meter.after_step(reduced(("a", answer(4, 1.0, (1, 3))), ("b", answer(4, 2.0))))
    meter.after_step(reduced(("a", answer(4, 0.5, (4, 0))), ("b", answer(2, 1.0))))
    held = {name: cost.held_seconds for name, cost in meter.costs.teachers.items()}
    assert meter.costs.teachers == {
        "a": TeacherCost(8, 5, 480, 1.5, 0.75, 3.0, held["a"]),
        "b": TeacherCost(6, 0, 360, 3.0, 0.0, 3.0, held["b"]),
    }
    assert held["a"] == pytest.approx(3 * held["b"])
    assert meter.costs.prices == Prices(4.0, None)


def test_replicas_are_held_while_they_wait_and_a_pool_that_grows_holds_more():
    client, begin = Occupies(1, 0.0, 1.0), time.monotonic()
    meter = CostMeter({"a": client}, ClusterConfig(), {})
    time.sleep(0.05)
    meter.after_step(StepRecord(0, 0.1))  # a step without it: quarantined
    first, passed = meter.costs.teachers["a"].held_seconds, time.monotonic() - begin
    assert 0.05 <= first <= passed and meter.costs.teachers["a"].busy == 0
    client.now = Held(4, 0.0, 1.0)
    time.sleep(0.05)
    meter.after_step(StepRecord(1, 0.1))
    assert meter.costs.teachers["a"].held_seconds - first >= 4 * 0.05


def test_it_goes_on_from_what_a_checkpoint_counted():
    client = {"a": Occupies(1, 1.0, 1.0), "new": Occupies(1, 0.0, 1.0)}
    before = TeacherCost(10, 2, 1000, 5.0, 5.0, 5.0, 8.0)
    counted = {"a": dataclasses.asdict(before), "gone": dataclasses.asdict(before)}
    meter = CostMeter(client, ClusterConfig(), counted)
    expected = {"a": dataclasses.asdict(before), "new": dataclasses.asdict(TeacherCost())}
    assert meter.state_dict() == {"teacher_cost": expected}
    meter.after_step(reduced(("a", answer(4, 1.0))))
    after = meter.costs.teachers["a"]
    assert dataclasses.replace(after, held_seconds=0.0) == TeacherCost(14, 2, 1240, 6.0, 6.0, 6.0, 0.0)
    assert after.held_seconds >= 8.0
    assert set(counted) == {"a", "gone"} and counted["a"]["images"] == 10
