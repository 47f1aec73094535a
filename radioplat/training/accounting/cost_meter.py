"""Counts what the teachers of a run cost while it goes on."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from radioplat.spec.schema.cluster import ClusterConfig
from radioplat.teachers.serving.client import TeacherClient
from radioplat.tracking.teacher_cost import Prices, TeacherCost, TeacherCosts
from radioplat.training.hooks.step_hook import StepHook
from radioplat.training.hooks.step_record import StepRecord


class CostMeter(StepHook):
    """Adds reduced records to :attr:`costs`. Its clock starts with it: make it before a teacher is asked.

    A roll-back to a checkpoint leaves it as it is: the work was done.

    Args:
        clients: of all teachers, by name.
        cluster: the prices.
        counted: costs by teacher at the checkpoint that the start resumes from; {} for a fresh run.
    """

    name = "teacher_cost"

    def __init__(
        self, clients: Mapping[str, TeacherClient], cluster: ClusterConfig, counted: Mapping[str, Mapping[str, Any]]
    ) -> None:
        self._clients = clients
        teachers = {name: TeacherCost(**counted.get(name, {})) for name in clients}
        self.costs = TeacherCosts(teachers, Prices(cluster.gpu_hour_price, cluster.cpu_hour_price))
        self._clock = time.monotonic()

    def figures(self) -> dict[str, float]:
        """``cost/<teacher>/<figure>``."""
        return self.costs.kpi()

    def after_step(self, record: StepRecord) -> None:
        """Add what ``record`` counted on all ranks, and the time since the last record for which replicas were held."""
        now = time.monotonic()
        passed, self._clock = now - self._clock, now
        for name, client in self._clients.items():
            held, seconds = client.held(), record.teacher_seconds.get(name, 0.0)
            images, size = record.received.get(name, (0, 0))
            hits, _ = record.cached.get(name, (0, 0))
            self.costs.teachers[name] += TeacherCost(
                images,
                hits,
                size,
                seconds,
                seconds * held.num_gpus,
                seconds * held.num_cpus,
                passed * held.replicas,
            )

    def state_dict(self) -> dict[str, Any]:
        """All counts so far, by teacher."""
        return {"teacher_cost": {name: asdict(cost) for name, cost in self.costs.teachers.items()}}
