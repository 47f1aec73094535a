"""Nodes as tasks of a Ray cluster: Ray decides on which machine each runs."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from radioplat.cluster.ray_cluster import uses_ray
from radioplat.cluster.resources import Resources, demand_of
from radioplat.errors import RadioplatError, Stopped
from radioplat.spec.resolved.teacher import frozen_teachers
from radioplat.spec.schema.cluster import ClusterMode
from radioplat.spec.schema.distill import StudentPlacement
from radioplat.spec.schema.root import Spec
from radioplat.tasks.pipeline.dag import TaskNode
from radioplat.tasks.pipeline.local_runner import LOG, error_of
from radioplat.tasks.pipeline.worker import Job, run_job
from radioplat.tasks.shared.interruption import InterruptionWatch, stop_file

CHECK_S = 1.0
MOVED = -1  # status of a task whose machine is taken away, and that starts again elsewhere
RETRIES = 3  # after a lost machine


@dataclass(frozen=True)
class Placed:
    """A node on the cluster.

    Attributes:
        alone: whether it is one process; else it starts a Ray run with several workers, or groups of them.
        task: what Ray reserves for the process of the node itself.
        whole: what the node needs in all, with the workers and teachers that it starts.
    """

    alone: bool
    task: Resources
    whole: Resources


def placed_on(spec: Spec, gpus: bool) -> Placed:
    """Return the resources of a node.

    Args:
        gpus: the cluster has GPUs.
    """
    spread = spec.distill.placement is StudentPlacement.spread
    if (spread or spec.worker_bounds[1] > 1) and uses_ray(spec):
        groups = max(1, len(spec.distill.students)) if spread else 1
        return Placed(False, Resources(0.01, 0.0), demand_of(spec, frozen_teachers(spec), gpus, groups=groups))
    own = Resources(spec.cluster.cpus_per_worker, float(gpus))
    return Placed(True, own, own)


class RayRunner:
    """Runs each node as a Ray task; the cluster is joined.

    A node starts if the resources of the cluster suffice for it and for those that run; Ray chooses the machine. If
    none runs, one starts in any case, and Ray waits for its resources, which an autoscaler may add.

    Args:
        home: folder that all machines can read.
        concurrent: nodes at once; None: as the resources suffice.
        specs: of the nodes, by name.
        job_of: returns the job of a node that starts now.
        watch: called every second.
    """

    def __init__(
        self,
        home: Path,
        concurrent: int | None,
        specs: Mapping[str, Spec],
        job_of: Callable[[TaskNode], Job],
        watch: Callable[[], None],
    ) -> None:
        import ray

        self._home, self._concurrent, self._job_of, self._watch = home, concurrent, job_of, watch
        self._gpus = ray.cluster_resources().get("GPU", 0) > 0
        self._placed = {name: placed_on(spec, self._gpus) for name, spec in specs.items()}
        self._token = secrets.token_hex(3)
        self._running: dict[Any, tuple[TaskNode, Job]] = {}
        self._cancelled: set[Any] = set()
        self.stopping = False

    def fits(self, node: TaskNode) -> bool:
        """Return whether the resources of the cluster suffice for a node and for those that run."""
        import ray

        if self.stopping or (self._concurrent is not None and len(self._running) >= self._concurrent):
            return False
        if not self._running:
            return True
        have = ray.cluster_resources()
        needs = [self._placed[each.name].whole for each, _ in self._running.values()] + [self._placed[node.name].whole]
        cpus, gpus = sum(need.cpus for need in needs), sum(need.gpus for need in needs)
        return bool(cpus <= have.get("CPU", 0) + 1e-6 and gpus <= have.get("GPU", 0) + 1e-6)

    def start(self, node: TaskNode) -> None:
        """Submit the task of a node."""
        job = self._job_of(node)
        if self._placed[node.name].alone:  # its task is the worker, and starts no Ray run
            cluster = job.spec["cluster"] | {"mode": ClusterMode.local.name}
            job = dataclasses.replace(job, spec=job.spec | {"cluster": cluster})
        self._submit(node, job)

    def _submit(self, node: TaskNode, job: Job) -> None:
        import ray

        need = self._placed[node.name].task
        # A process each: a request to stop is for one node only.
        options = {"num_cpus": need.cpus, "num_gpus": need.gpus, "max_calls": 1, "max_retries": RETRIES}
        _begun(self._home, self._token, node.name).unlink(missing_ok=True)
        task = ray.remote(**options)(_run_on_ray).options(name=node.name)
        self._running[task.remote(job, str(self._home), self._token)] = (node, job)

    def ended(self) -> list[tuple[TaskNode, BaseException | None]]:
        """Wait for a second; return the nodes whose tasks have ended."""
        import ray

        self._watch()
        if self.stopping:
            self._cancel_waiting()
        done, _ = ray.wait(list(self._running), timeout=CHECK_S)
        result: list[tuple[TaskNode, BaseException | None]] = []
        for reference in done:
            node, job = self._running.pop(reference)
            try:
                status = ray.get(reference)
            except ray.exceptions.TaskCancelledError:
                result.append((node, Stopped()))
                continue
            except ray.exceptions.RayError as error:
                message = f"its process on the cluster was lost: {str(error).splitlines()[0]}"
                result.append((node, RadioplatError(message, hint="The same command continues the node.")))
                continue
            if status == MOVED and not self.stopping:
                self._submit(node, job)
            else:
                result.append((node, error_of(job, status)))
        return result

    def stop(self) -> None:
        """Let every task save a checkpoint and end; no further one starts."""
        self.stopping = True
        stop_file(self._home, self._token).touch()

    def _cancel_waiting(self) -> None:
        """Cancel the tasks that wait for resources; they would never see that they are to stop."""
        import ray

        for reference, (node, _) in self._running.items():
            if reference not in self._cancelled and not _begun(self._home, self._token, node.name).exists():
                self._cancelled.add(reference)
                ray.cancel(reference)

    def close(self) -> None:
        """Stop what still runs after an error, and wait for it."""
        import ray

        self.stop()
        with contextlib.suppress(Exception):
            self._cancel_waiting()
        with contextlib.suppress(Exception):  # the cluster may have stopped, too
            ray.wait(list(self._running), num_returns=max(1, len(self._running)), timeout=60)
        stop_file(self._home, self._token).unlink(missing_ok=True)
        for name in self._placed:
            _begun(self._home, self._token, name).unlink(missing_ok=True)


def _begun(home: Path, token: str, name: str) -> Path:
    """Return the path of the file that exists once the task of a node has begun."""
    return home / f".begun.{token}.{name}"


def _run_on_ray(job: Job, home: str, token: str) -> int:
    """Run a node in this process of Ray's; return the status of :func:`run_job`, or :data:`MOVED`."""
    watch = InterruptionWatch(Path(home), token)
    stopped = int(Stopped().code)
    _begun(Path(home), token, job.name).touch()  # before the look at the request: then nobody cancels it any more
    if watch.stop_requested:
        return stopped
    folder = Path(job.folder)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOG).open("ab") as log:  # this process is for one node alone
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    with watch.watching():
        status = run_job(job)
    return MOVED if status == stopped and watch.node_draining else status
