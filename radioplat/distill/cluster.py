"""Joining or starting a Ray cluster, and what it can offer."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass

import ray

from radioplat.distill.prepare import Run
from radioplat.errors import PlacementError
from radioplat.spec.cluster import ClusterMode, Placement
from radioplat.spec.root import Spec


@dataclass(frozen=True)
class Demand:
    """Logical CPUs and GPUs that a run takes."""

    cpus: float
    gpus: float


def wants_ray(spec: Spec) -> bool:
    """Whether the run goes to a cluster: asked for, or several workers, or one is there to join."""
    mode = spec.cluster.mode
    if mode is ClusterMode.local and spec.world_size > 1:
        raise PlacementError(
            f"local mode is one process and cannot hold {spec.world_size} workers", where="cluster.mode",
            hint="Set train.num_gpus=1, or cluster.mode=ray.",
        )
    if mode is not ClusterMode.auto:
        return mode is ClusterMode.ray
    return spec.world_size > 1 or bool(spec.cluster.address or os.environ.get("RAY_ADDRESS") or ray.is_initialized())


def demand(run: Run, gpus: bool) -> Demand:
    """What training workers, decode tasks and teachers of ``run`` take together."""
    spec = run.spec
    cpus = spec.world_size * spec.cluster.cpus_per_worker + spec.cluster.cpus_per_decode
    cards = float(spec.world_size if gpus else 0)
    for teacher in run.teachers:
        if teacher.service.placement is not Placement.inline:
            cpus += teacher.service.replicas * teacher.service.num_cpus
            cards += teacher.service.replicas * teacher_gpus(teacher.service.num_gpus, gpus)
    return Demand(cpus, cards)


def teacher_gpus(asked: float | None, gpus: bool) -> float:
    """GPUs of one replica: as asked, else one where the cluster has any."""
    return asked if asked is not None else float(gpus)


@contextlib.contextmanager
def joined(run: Run) -> Iterator[bool]:
    """Be connected to a cluster; yields whether it has GPUs. A cluster of our own ends with the block.

    Raises:
        PlacementError: the cluster can never hold the run.
    """
    ours = _connect(run)
    try:
        offered = ray.cluster_resources()
        gpus = offered.get("GPU", 0) > 0
        needed = demand(run, gpus)
        # An autoscaler may add nodes; without one, what there is is all there will ever be.
        if not _can_grow():
            for name, want, have in (("CPU", needed.cpus, offered.get("CPU", 0)), ("GPU", needed.gpus, offered.get("GPU", 0))):
                if want > have + 1e-6:
                    raise PlacementError(
                        f"the run takes {want:g} {name}s and the cluster has {have:g}",
                        where="train.num_gpus" if name == "GPU" else "cluster.cpus_per_worker",
                        hint=_less(name),
                    )
        yield gpus
    finally:
        if ours:
            ray.shutdown()


def _less(name: str) -> str:
    if name == "GPU":
        return "Lower train.num_gpus or teachers.<name>.num_gpus (a fraction shares a card), or add nodes."
    return "Lower cluster.cpus_per_worker, cluster.cpus_per_decode or teachers.<name>.num_cpus (fractions are fine), or add nodes."


def _connect(run: Run) -> bool:
    """Connect; True where the cluster is our own."""
    if ray.is_initialized():
        return False
    quiet = dict(logging_level=logging.WARNING, log_to_driver=True)
    address = run.spec.cluster.address or os.environ.get("RAY_ADDRESS")
    if address:
        ray.init(address=address, **quiet)
        return False
    try:
        ray.init(address="auto", **quiet)
        return False
    except ConnectionError:
        pass
    # On one machine logical CPUs are bookkeeping: offer what the spec asks, so that a laptop runs it too.
    cpus = max(float(os.cpu_count() or 1), demand(run, gpus=False).cpus)
    # With its dashboard, on loopback: Ray Train's clean-up and Tune ask it for the state of actors.
    ray.init(num_cpus=int(-(-cpus // 1)), include_dashboard=True, **quiet)
    return True


def _can_grow() -> bool:
    return any(node.get("Labels", {}).get("ray.io/autoscaling") for node in ray.nodes()) or "RAY_AUTOSCALER_MAX" in os.environ
