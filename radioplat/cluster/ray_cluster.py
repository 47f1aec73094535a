"""Joining or starting a Ray cluster, and what it can ever offer. ``ray`` is imported only where a cluster is meant."""

from __future__ import annotations

import contextlib
import logging
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from radioplat.cluster.capacity import WORKER_RESOURCE
from radioplat.cluster.connection import check_can_join
from radioplat.common import ray_internals
from radioplat.errors import ClusterError, PlacementError, Problem
from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.spec.schema.cluster import ClusterMode, Placement
from radioplat.spec.schema.root import Spec


@dataclass(frozen=True)
class Offer:
    """Logical CPUs and GPUs: what a cluster has, or what a run takes."""

    cpus: float
    gpus: float

    @classmethod
    def this_machine(cls) -> Offer:
        """Cores and CUDA devices of this machine."""
        return cls(float(os.cpu_count() or 1), float(torch.cuda.device_count()))

    @property
    def device(self) -> torch.device:
        """What teachers and workers run on."""
        return torch.device("cuda" if self.gpus else "cpu")


def uses_ray(spec: Spec) -> bool:
    """Whether the run goes to a cluster: asked for, or several workers, or one is there to join.

    Raises:
        PlacementError: local mode with several workers.
    """
    mode = spec.cluster.mode
    fewest, most = spec.worker_bounds
    if mode is ClusterMode.local and most > 1:
        elastic = "" if fewest == most else "train.max_workers=1 and "
        raise PlacementError(
            f"local mode is one process and cannot hold {most} workers",
            where="cluster.mode",
            hint=f"Set {elastic}train.num_gpus=1, or cluster.mode=ray.",
        )
    if mode is not ClusterMode.auto:
        return mode is ClusterMode.ray
    return most > 1 or _address(spec) is not None or _is_joined()


def demand_of(spec: Spec, teachers: list[ResolvedTeacher], gpus: bool, most: bool = False) -> Offer:
    """What training workers, one decode task and the teachers take together.

    Args:
        most: as many workers as there may ever be, not as few.
    """
    workers = spec.worker_bounds[1 if most else 0]
    beside = teachers_and_decoding(spec, teachers, gpus)
    return Offer(workers * spec.cluster.cpus_per_worker + beside.cpus, (workers if gpus else 0) + beside.gpus)


def teachers_and_decoding(spec: Spec, teachers: list[ResolvedTeacher], gpus: bool) -> Offer:
    """What one decode task and the teachers take."""
    cpus, cards = spec.cluster.cpus_per_decode, 0.0
    for teacher in teachers:
        if teacher.service.placement is not Placement.inline:
            least, _ = teacher.service.bounds
            cpus += least * teacher.service.num_cpus
            cards += least * teacher_gpus(teacher.service.num_gpus, gpus)
    return Offer(cpus, cards)


def teacher_gpus(asked: float | None, gpus: bool) -> float:
    """GPUs of one replica: as asked, else one where the cluster has any."""
    return asked if asked is not None else float(gpus)


def offer(spec: Spec) -> Offer:
    """The most that the cluster of ``spec`` can ever have; nothing is started.

    A cluster that is not there yet would be this machine; its logical CPUs are then as many as the run asks for.

    Raises:
        ClusterError: it cannot be joined.
    """
    address, ours = _address(spec), not _is_joined()
    if ours:
        if address is None:
            return Offer(math.inf, Offer.this_machine().gpus)
        _join(address, log_to_driver=False)
    import ray

    try:
        return _most()
    finally:
        if ours:
            ray.shutdown()


def shortages(needed: Offer, offered: Offer) -> list[Problem]:
    """A problem for each resource of which the cluster can never have enough."""
    problems = []
    for name, want, have, where, hint in (
        (
            "CPU",
            needed.cpus,
            offered.cpus,
            "cluster.cpus_per_worker",
            "Lower cluster.cpus_per_worker, cluster.cpus_per_decode or teachers.<name>.num_cpus (fractions are "
            "fine), or add nodes.",
        ),
        (
            "GPU",
            needed.gpus,
            offered.gpus,
            "train.num_gpus",
            "Lower train.num_gpus or teachers.<name>.num_gpus (a fraction shares a card), or add nodes.",
        ),
    ):
        if want > have + 1e-6:
            problems.append(
                Problem(f"the run takes {want:g} {name}s and the cluster can have at most {have:g}", where, hint)
            )
    return problems


@contextlib.contextmanager
def joined(spec: Spec, teachers: list[ResolvedTeacher]) -> Iterator[bool]:
    """Be connected to a cluster; yields whether it has GPUs. A cluster of our own ends with the block.

    Raises:
        ClusterError: the cluster cannot be joined.
        PlacementError: it can never hold the run.
    """
    import ray

    ours = _connect(spec, teachers)
    try:
        most = _most()
        problems = shortages(demand_of(spec, teachers, most.gpus > 0), most)
        if problems:
            raise PlacementError(*problems)
        yield most.gpus > 0
    finally:
        if ours:
            ray.shutdown()


@contextlib.contextmanager
def attached(address: str | None) -> Iterator[bool]:
    """Be connected to the cluster that runs; yields whether it has GPUs.

    Args:
        address: default: RAY_ADDRESS, else the cluster on this machine.

    Raises:
        ClusterError: none runs there, or it cannot be joined.
    """
    import ray

    found = address or _running()
    ours = not ray.is_initialized()
    if ours:
        if found is None:
            hint = "ray start --head, or set RAY_ADDRESS."
            raise ClusterError("no cluster runs here", where="cluster.address", hint=hint)
        _join(found, log_to_driver=False)
    try:
        yield _most().gpus > 0
    finally:
        if ours:
            ray.shutdown()


def _connect(spec: Spec, teachers: list[ResolvedTeacher]) -> bool:
    """Connect; True where the cluster is our own."""
    import ray

    if ray.is_initialized():
        return False
    address = _address(spec)
    if address:
        _join(address)
        return False
    logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)
    # On one machine logical CPUs are bookkeeping: offer what the spec asks, so that a laptop runs it too.
    # Without a dashboard: its nine processes take two small cores half a minute to start. Ray Train's clean-up actor
    # misses it and warns every second; a cluster that ends with the run needs no clean-up, so only errors are shown.
    cpus = max(float(os.cpu_count() or 1), demand_of(spec, teachers, gpus=False, most=True).cpus)
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's 15 leaves nothing below it for teachers to give way to
    os.environ.setdefault("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")  # nobody takes this machine's only node away
    ray.init(
        num_cpus=math.ceil(cpus),
        include_dashboard=False,
        logging_level=logging.WARNING,
        logging_config=ray.LoggingConfig(log_level="ERROR"),
    )
    return True


def check_cluster(spec: Spec) -> None:
    """Before a task writes anything: the cluster that its run is to join answers, if there is one.

    Raises:
        ClusterError: it cannot be joined.
    """
    if spec.cluster.mode is not ClusterMode.local and not _is_joined() and (address := _address(spec)):
        check_can_join(address, _named_by(address))


def _join(address: str, log_to_driver: bool = True) -> None:
    """``ray.init`` for a cluster that runs, once it answers."""
    import ray

    logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)
    check_can_join(address, _named_by(address))
    try:
        ray.init(address=address, logging_level=logging.WARNING, log_to_driver=log_to_driver)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        said = str(error.__cause__ or error).strip().splitlines()
        raise ClusterError(
            f"cannot join the cluster at {address}: {said[-1] if said else type(error).__name__}",
            where=_named_by(address),
            hint="`ray status` on a node of the cluster must show this machine.",
        ) from error


def _named_by(address: str) -> str:
    return "RAY_ADDRESS" if address == os.environ.get("RAY_ADDRESS") else "cluster.address"


# Given to controller and workers by the driver's environment, where the user has not set them. Ray's own values suit
# clusters of thousands of nodes: 2 s, 60 s and 5 s.
RAY_TRAIN_SETTINGS = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",  # between looks at the workers
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "20",  # for the places of a group that was counted to have room
    "RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S": "1",  # between looks for nodes that are to go
}


@contextlib.contextmanager
def ray_train_settings() -> Iterator[None]:
    """Around the start of a worker group: what of :data:`RAY_TRAIN_SETTINGS` the user has not set."""
    ours = {name: value for name, value in RAY_TRAIN_SETTINGS.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)


def worker_resources(spec: Spec, offered: Mapping[str, float]) -> dict[str, float]:
    """Custom resources that a worker takes: the spec's, else one :data:`WORKER_RESOURCE` where nodes offer it.

    Args:
        offered: resources of the cluster by name.
    """
    named = spec.cluster.worker_resources
    return dict(named) if named or not offered.get(WORKER_RESOURCE) else {WORKER_RESOURCE: 1.0}


def _address(spec: Spec) -> str | None:
    """The cluster to join: the spec's, the environment's, or the one that runs on this machine; None for none."""
    return spec.cluster.address or _running()


def _running() -> str | None:
    asked = os.environ.get("RAY_ADDRESS")
    if asked:
        return asked
    current = ray_internals.read_ray_address()  # what `ray start` left behind; it may have died since
    # By this name ray.init sends the token that such a cluster wants; by its address it does not.
    return "auto" if current and current in ray_internals.find_gcs_addresses() else None


def _is_joined() -> bool:
    import sys

    return "ray" in sys.modules and sys.modules["ray"].is_initialized()


def _most() -> Offer:
    """What the joined cluster has, or what its autoscaler may add up to."""
    import ray

    have, most = ray.cluster_resources(), ray_internals.state.get_max_resources_from_cluster_config() or {}
    return Offer(max(have.get("CPU", 0), most.get("CPU", 0)), max(have.get("GPU", 0), most.get("GPU", 0)))
