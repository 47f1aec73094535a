"""Logical CPUs and GPUs that a run needs, and that a machine or cluster has."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from radioplat.cluster.gpu_kinds import GpuKind, kinds_here
from radioplat.errors import Problem
from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.spec.schema.cluster import Placement
from radioplat.spec.schema.root import Spec


@dataclass(frozen=True)
class Resources:
    """Logical CPUs and GPUs of a cluster, or of a run.

    Attributes:
        kinds: kinds of the GPUs; empty if they are not known.
        spot: whether nodes may be taken away at any time, as far as is known.
    """

    cpus: float
    gpus: float
    kinds: tuple[GpuKind, ...] = ()
    spot: bool = False

    @classmethod
    def this_machine(cls) -> Resources:
        """Return the cores and CUDA devices of this machine."""
        return cls(float(os.cpu_count() or 1), float(torch.cuda.device_count()), kinds_here())

    @property
    def device(self) -> torch.device:
        """The device of teachers and workers."""
        return torch.device("cuda" if self.gpus else "cpu")


def demand_of(
    spec: Spec, teachers: list[ResolvedTeacher], gpus: bool, most: bool = False, groups: int = 1
) -> Resources:
    """Return the demand of training workers, one decode task and the teachers together.

    Args:
        gpus: the cluster has GPUs.
        most: for the maximum number of workers instead of the minimum.
        groups: of workers.
    """
    workers = spec.worker_bounds[1 if most else 0] * groups
    other = teachers_and_decoding(spec, teachers, gpus)
    return Resources(workers * spec.cluster.cpus_per_worker + other.cpus, (workers if gpus else 0) + other.gpus)


def teachers_and_decoding(spec: Spec, teachers: list[ResolvedTeacher], gpus: bool) -> Resources:
    """Return the demand of one decode task and of the teachers outside the workers."""
    services = [teacher.service for teacher in teachers if teacher.service.placement is not Placement.inline]
    cpus = sum((service.bounds[0] * service.num_cpus for service in services), spec.cluster.cpus_per_decode)
    return Resources(cpus, sum((service.bounds[0] * teacher_gpus(service.num_gpus, gpus) for service in services), 0.0))


def teacher_gpus(num_gpus: float | None, gpus: bool) -> float:
    """Return the GPUs of one replica: ``num_gpus`` of the spec, by default one if the cluster has any."""
    return num_gpus if num_gpus is not None else float(gpus)


def shortages(demand: Resources, limit: Resources) -> Iterator[Problem]:
    """Yield a problem for each resource of which the cluster can never have enough."""
    cpu_hint = "Lower cluster.cpus_per_worker, cluster.cpus_per_decode or teachers.<name>.num_cpus (fractions are fine)"
    gpu_hint = (
        "Lower train.num_gpus or teachers.<name>.num_gpus (a fraction shares a GPU), set teachers.<name>.placement to "
        "inline (the teacher computes on the workers' GPUs)"
    )
    for name, needed, available, where, hint in (
        ("CPU", demand.cpus, limit.cpus, "cluster.cpus_per_worker", cpu_hint),
        ("GPU", demand.gpus, limit.gpus, "train.num_gpus", gpu_hint),
    ):
        if needed > available + 1e-6:
            message = f"the run takes {needed:g} {name}s and the cluster can have at most {available:g}"
            yield Problem(message, where, f"{hint}, or add nodes.")
