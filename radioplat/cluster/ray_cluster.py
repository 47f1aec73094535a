"""Join or start a Ray cluster. ``ray`` is imported only by runs that use a cluster."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from radioplat.cluster.capacity import WORKER_RESOURCE
from radioplat.cluster.connection import check_can_join
from radioplat.cluster.gpu_kinds import kinds_of_cluster
from radioplat.cluster.resources import Resources, demand_of, shortages
from radioplat.common import ray_internals
from radioplat.common.imports import missing_core
from radioplat.errors import ClusterError, PlacementError
from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.spec.schema.cluster import ClusterMode
from radioplat.spec.schema.root import Spec

if TYPE_CHECKING:
    import ray


def uses_ray(spec: Spec) -> bool:
    """Return True if the run uses a cluster: by ``cluster.mode``, for several workers, or if one can be joined.

    Raises:
        PlacementError: local mode with several workers.
        ClusterError: it may, and Ray is not installed.
    """
    mode = spec.cluster.mode
    fewest, most = spec.worker_bounds
    if mode is ClusterMode.local and most > 1:
        elastic = "" if fewest == most else "train.max_workers=1 and "
        raise PlacementError(
            f"local mode is one process and cannot run {most} workers",
            where="cluster.mode",
            hint=f"Set {elastic}train.num_gpus=1, or cluster.mode=ray.",
        )
    if mode is ClusterMode.local:
        return False
    if problems := list(missing_core("ray", "any cluster.mode but local", "cluster.mode")):
        raise ClusterError(*problems)
    return mode is ClusterMode.ray or most > 1 or _address(spec) is not None or _is_joined()


def cluster_resources(spec: Spec) -> Resources:
    """Return the maximum resources of the cluster of ``spec``; none is started.

    A cluster that would be started on this machine has as many logical CPUs as the run needs.

    Raises:
        ClusterError: it cannot be joined.
    """
    if not _is_joined() and _address(spec) is None:
        return replace(Resources.this_machine(), cpus=math.inf)
    with _joined_for_a_while(_address(spec)):
        import ray

        kinds = kinds_of_cluster(ray.cluster_resources(), spec.cluster.worker_resources)
        labels = [node.get("Labels", {}).get(_MARKET) for node in ray.nodes() if node.get("Alive")]
        return replace(_most(), kinds=kinds, spot=_SPOT in labels)


@contextlib.contextmanager
def joined(spec: Spec, teachers: list[ResolvedTeacher], groups: int = 1) -> Iterator[bool]:
    """Connect to a cluster during the block, and yield True if it has GPUs; a cluster started for it ends with it.

    Args:
        groups: of workers.

    Raises:
        ClusterError: the cluster cannot be joined.
        PlacementError: it can never have the resources of the run.
    """
    import ray

    started = _connect(spec, teachers, groups)
    try:
        most = _most()
        if problems := list(shortages(demand_of(spec, teachers, most.gpus > 0, groups=groups), most)):
            raise PlacementError(*problems)
        yield most.gpus > 0
    finally:
        if started:
            ray.shutdown()


@contextlib.contextmanager
def attached(address: str | None) -> Iterator[bool]:
    """Connect to a running cluster during the block, and yield True if it has GPUs.

    Args:
        address: default: RAY_ADDRESS, else the cluster on this machine.

    Raises:
        ClusterError: none runs there, or it cannot be joined.
    """
    address = address or _running()
    if address is None and not _is_joined():
        hint = "ray start --head, or set RAY_ADDRESS."
        raise ClusterError("no cluster runs here", where="cluster.address", hint=hint)
    with _joined_for_a_while(address):
        yield _most().gpus > 0


@contextlib.contextmanager
def _joined_for_a_while(address: str | None) -> Iterator[None]:
    """Join the cluster during the block, without workers' output; keep a connection that exists already."""
    import ray

    joins = not ray.is_initialized()
    if joins:
        assert address is not None
        _join(address, log_to_driver=False)
    try:
        yield
    finally:
        if joins:
            ray.shutdown()


def _connect(spec: Spec, teachers: list[ResolvedTeacher], groups: int) -> bool:
    """Join or start a cluster; return True if one was started."""
    import ray

    if ray.is_initialized():
        return False
    address = _address(spec)
    if address:
        _join(address)
        return False
    logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)
    # On a single machine logical CPUs only limit the number of processes: as many as the spec needs, so that a laptop
    # can run it. Without a dashboard: its nine processes take two small cores half a minute to start. Ray Train's
    # clean-up actor misses it and warns every second; a cluster that ends with the run needs no clean-up, so only
    # errors are shown.
    cpus = max(float(os.cpu_count() or 1), demand_of(spec, teachers, gpus=False, most=True, groups=groups).cpus)
    os.environ.setdefault("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")  # the only node cannot be preempted
    start_here(cpus, logging_config=ray.LoggingConfig(log_level="ERROR"))
    return True


def start_here(cpus: float, dashboard: bool = False, logging_config: ray.LoggingConfig | None = None) -> None:
    """Start a Ray cluster of this machine alone and connect to it; ``ray.shutdown`` ends it.

    Args:
        cpus: logical CPUs; rounded up.
    """
    import ray

    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's 15 leaves no lower priority for teachers
    ray.init(
        address="local",  # without it Ray takes a cluster that has ended, if it left its address
        num_cpus=math.ceil(cpus),
        include_dashboard=dashboard,
        logging_level=logging.WARNING,
        logging_config=logging_config,
    )


def check_cluster(spec: Spec) -> None:
    """Check that the cluster that the run would join answers, if there is one; called before anything is written.

    Raises:
        ClusterError: it cannot be joined.
    """
    if spec.cluster.mode is not ClusterMode.local and not _is_joined() and (address := _address(spec)):
        check_can_join(address, _named_by(address))


def _join(address: str, log_to_driver: bool = True) -> None:
    """Join a running cluster by ``ray.init``, after a check that it answers."""
    import ray

    logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)
    check_can_join(address, _named_by(address))
    try:
        ray.init(address=address, logging_level=logging.WARNING, log_to_driver=log_to_driver)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        lines = str(error.__cause__ or error).strip().splitlines()
        raise ClusterError(
            f"cannot join the cluster at {address}: {lines[-1] if lines else type(error).__name__}",
            where=_named_by(address),
            hint="`ray status` on a node of the cluster must show this machine.",
        ) from error


def _named_by(address: str) -> str:
    return "RAY_ADDRESS" if address == os.environ.get("RAY_ADDRESS") else "cluster.address"


_MARKET, _SPOT = "ray.io/market-type", "spot"  # Ray's label of a node, and its value where it may be taken away
# Environment variables for controller and workers, unless the user has set them. Ray's own values are for clusters of
# thousands of nodes: 2 s, 60 s and 5 s.
RAY_TRAIN_SETTINGS = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",  # between two health checks of the workers
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "20",  # for the placement of a group whose resources are free
    "RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S": "1",  # between two checks for draining nodes
}


@contextlib.contextmanager
def ray_train_settings() -> Iterator[None]:
    """Set :data:`RAY_TRAIN_SETTINGS` during the block, except those that the user has set."""
    added = {name: value for name, value in RAY_TRAIN_SETTINGS.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def worker_resources(spec: Spec, available: Mapping[str, float]) -> dict[str, float]:
    """Return the custom resources of a worker: the spec's, else one :data:`WORKER_RESOURCE` if the cluster has it.

    Args:
        available: resources of the cluster by name.
    """
    named = spec.cluster.worker_resources
    return dict(named) if named or not available.get(WORKER_RESOURCE) else {WORKER_RESOURCE: 1.0}


def _address(spec: Spec) -> str | None:
    """Return the address of the cluster to join: the spec's, the environment's, or this machine's; None for none."""
    return spec.cluster.address or _running()


def _running() -> str | None:
    if address := os.environ.get("RAY_ADDRESS"):
        return address
    current = ray_internals.read_ray_address()  # written by `ray start`; the cluster may have ended since
    # With "auto" ray.init sends the token that such a cluster requires; with its address it does not.
    return "auto" if current and current in ray_internals.find_gcs_addresses() else None


def _is_joined() -> bool:
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


def _most() -> Resources:
    """Return the resources of the joined cluster, or the maximum that its autoscaler may start."""
    import ray

    have, most = ray.cluster_resources(), ray_internals.state.get_max_resources_from_cluster_config() or {}
    return Resources(max(have.get("CPU", 0), most.get("CPU", 0)), max(have.get("GPU", 0), most.get("GPU", 0)))
