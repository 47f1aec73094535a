"""Count the costs of the teachers while a run trains."""

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
    """Add the teachers' work of each step to :attr:`costs`, from records that are summed over all ranks.

    Time counts from construction, so construct it before the first request to a teacher. A roll-back to a checkpoint
    does not reduce the costs: the work was done.

    Args:
        clients: clients of all teachers, by name.
        cluster: contains the prices of GPU and CPU hours.
        counted: costs by teacher in the checkpoint that this start resumes from; {} for a new run.
        groups: groups of workers that the replicas serve; each pays its part of their time.

    Attributes:
        share: the part of the teachers' work that this student pays for, of several that learn from it.
    """

    name = "teacher_cost"

    def __init__(
        self,
        clients: Mapping[str, TeacherClient],
        cluster: ClusterConfig,
        counted: Mapping[str, Mapping[str, Any]],
        groups: int = 1,
    ) -> None:
        self._clients, self._groups = clients, groups
        teachers = {name: TeacherCost(**counted.get(name, {})) for name in clients}
        self.costs = TeacherCosts(teachers, Prices(cluster.gpu_hour_price, cluster.cpu_hour_price))
        self._clock = time.monotonic()
        self.share = 1.0

    def figures(self) -> dict[str, float]:
        """Return the costs as ``cost/<teacher>/<figure>``."""
        return self.costs.kpi()

    def after_step(self, record: StepRecord) -> None:
        """Add the counts of ``record``, and the replica seconds since the last record."""
        now = time.monotonic()
        passed, self._clock = now - self._clock, now
        for name, client in self._clients.items():
            held, seconds = client.held(), self.share * record.teacher_seconds.get(name, 0.0)
            images, size = record.received.get(name, (0, 0))
            hits, _ = record.cached.get(name, (0, 0))
            self.costs.teachers[name] += TeacherCost(
                images,
                hits,
                size,
                seconds,
                seconds * held.num_gpus,
                seconds * held.num_cpus,
                self.share * passed * held.replicas / self._groups,
            )

    def state_dict(self) -> dict[str, Any]:
        """Return all counts so far, by teacher."""
        return {"teacher_cost": {name: asdict(cost) for name, cost in self.costs.teachers.items()}}
