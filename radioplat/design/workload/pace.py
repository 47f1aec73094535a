"""Replicas of each teacher that keep up with the students, and the time in which the students' GPUs compute.

Every model is taken to reach the same share of a GPU's peak, and all GPUs to be alike. A worker with W operations an
image then asks as many images a second as a replica of a teacher of F operations, on g of a GPU, answers if there are

    replicas = workers * F / (W * g).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from radioplat.cluster.resources import Resources, teacher_gpus
from radioplat.design.workload.work import Work
from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.spec.schema.cluster import AUTO
from radioplat.spec.schema.root import Spec

UTILISATION = 0.5  # share of its peak that a GPU reaches in large matrix products; an assumption, for rates alone
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Pace:
    """Replicas against what the workers ask of them.

    Attributes:
        workers: GPUs with students.
        needed: replicas of each teacher in actors that keep up, a fraction; without those that run on CPUs.
        running: replicas of each of them; of a growing pool the most.
        busy: share of the time in which the workers' GPUs compute, 1 if all teachers keep up.
        student: share of the time in which they compute the student, the rest being teachers' or waiting.
    """

    workers: int
    needed: dict[str, float]
    running: dict[str, int]
    busy: float
    student: float

    @property
    def slow(self) -> list[str]:
        """Names of the teachers that do not keep up."""
        return [name for name, needed in self.needed.items() if self.running[name] < needed - _ROUNDING]


def replicas_needed(work: Work, workers: int, gpus_each: Mapping[str, float]) -> dict[str, float]:
    """Return the replicas, as a fraction, with which each teacher in actors keeps up with ``workers`` students.

    Args:
        gpus_each: GPUs of one replica by teacher; one without GPUs is left out.
    """
    return {
        name: workers * flops / (work.of_worker * gpus_each[name])
        for name, flops in work.outer.items()
        if gpus_each[name]
    }


def pace_of(work: Work, workers: int, teachers: list[ResolvedTeacher]) -> Pace:
    """Compare the replicas of ``teachers`` with the pace of ``workers`` students, all on GPUs."""
    by_name = {teacher.name: teacher for teacher in teachers if teacher.name in work.outer}
    each = {name: teacher_gpus(teacher.service.num_gpus, gpus=True) for name, teacher in by_name.items()}
    needed = replicas_needed(work, workers, each)
    running = {name: by_name[name].service.bounds[1] for name in needed}
    busy = min([1.0, *(running[name] / count for name, count in needed.items() if count)])
    return Pace(workers, needed, running, busy, busy * work.student / work.of_worker)


def automatic_replicas(spec: Spec, teachers: list[ResolvedTeacher], work: Work, resources: Resources) -> dict[str, int]:
    """Return the number of replicas of each teacher with ``replicas: auto``: as many as keep up and have a GPU.

    Each has one at least. While some do not keep up, the one that is furthest behind gets another, if there is a GPU.
    """
    open_ones = [t for t in teachers if t.service.replicas == AUTO and t.name in work.outer]
    counts = {teacher.name: 1 for teacher in open_ones}
    workers = spec.worker_bounds[1]
    each = {t.name: teacher_gpus(t.service.num_gpus, gpus=True) for t in teachers if t.name in work.outer}
    taken = sum(each[t.name] * t.service.bounds[0] for t in teachers if t.name in each)  # auto's bounds are 1
    room = resources.gpus - workers - taken
    needed = replicas_needed(work, workers, each)
    while True:
        behind = [name for name in counts if counts[name] < needed.get(name, 0) - _ROUNDING]
        last = min(behind, key=lambda name: counts[name] / needed[name], default=None)
        if last is None or each[last] > room + _ROUNDING:
            return counts  # others would still wait for the last one
        counts[last] += 1
        room -= each[last]
