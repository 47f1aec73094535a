"""Counts what the teachers of a run cost while it goes on."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from radioplat.spec.schema.cluster import ClusterConfig
from radioplat.teachers.serving.client import TeacherClient
from radioplat.tracking.teacher_cost import Bill, Prices, TeacherCost
from radioplat.training.accounting.step_record import StepRecord


class CostMeter:
    """Adds reduced records to :attr:`bill`. Its clock starts with it: make it before a teacher is asked.

    Args:
        clients: of all teachers, by name.
        cluster: the prices.
        counted: what :meth:`counted` gave at the checkpoint that the run goes on from; {} at its first start.
    """

    def __init__(
        self, clients: Mapping[str, TeacherClient], cluster: ClusterConfig, counted: Mapping[str, Mapping[str, Any]]
    ) -> None:
        self._clients = clients
        teachers = {name: TeacherCost(**counted.get(name, {})) for name in clients}
        self.bill = Bill(teachers, Prices(cluster.gpu_hour_price, cluster.cpu_hour_price))
        self._clock = time.monotonic()

    def charge(self, record: StepRecord) -> None:
        """Add what ``record`` counted on all ranks, and the time since the last record for which replicas were held."""
        now = time.monotonic()
        passed, self._clock = now - self._clock, now
        for name, client in self._clients.items():
            held, seconds = client.held(), record.teacher_seconds.get(name, 0.0)
            images, size = record.received.get(name, (0, 0))
            hits, _ = record.cached.get(name, (0, 0))
            self.bill.teachers[name] += TeacherCost(
                images,
                hits,
                size,
                seconds,
                seconds * held.num_gpus,
                seconds * held.num_cpus,
                passed * held.replicas,
            )

    def counted(self) -> dict[str, dict[str, float]]:
        """All counts so far, as a checkpoint holds them."""
        return {name: asdict(cost) for name, cost in self.bill.teachers.items()}
