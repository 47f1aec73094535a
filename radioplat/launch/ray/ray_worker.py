"""One training worker inside Ray Train: device, teacher clients, its micro-batches."""

from __future__ import annotations

import contextlib
import os

import ray.train
import ray.train.torch

from radioplat.common import collectives
from radioplat.common.cpu_threads import share_cores
from radioplat.data.loading.shared_reads import SharedReads
from radioplat.design.run import Run
from radioplat.design.stages import resting
from radioplat.launch.ray.streams import Streams
from radioplat.teachers.serving.client import InlineTeacher, TeacherClient
from radioplat.teachers.serving.remote_teacher import RemoteTeacher, await_pool
from radioplat.tracking.status import StatusLog
from radioplat.training.checkpoints.checkpoint import begun_at
from radioplat.training.feed.feature_cache import through_cache
from radioplat.training.guards.pause import Pauses, watch_notices
from radioplat.training.loop import process_group
from radioplat.training.loop.worker import run_worker
from radioplat.training.watch.collective_timeout import collective_timeout
from radioplat.training.watch.rank_context import RankContext


def work(run: Run, pools: dict[str, RemoteTeacher], shared: SharedReads | None) -> None:
    """Train ``run`` on this rank.

    Args:
        shared: of several groups of workers; None: there is one.

    Raises:
        RadioplatError: has the attribute ``agreed`` if every rank raises it.
    """
    with contextlib.suppress(OSError):  # Ray Train changes it; a node that lacks the folder needs absolute paths
        os.chdir(run.working_dir)
    context = ray.train.get_context()
    device = ray.train.torch.get_device()
    timeout = collective_timeout(run.spec)
    process_group.join("nccl" if device.type == "cuda" else "gloo", timeout)
    if device.type == "cpu":
        share_cores(run.spec.cluster.cpus_per_worker, context.get_local_world_size(), run.spec.train.threads)
    rank_context = RankContext(context.get_world_rank(), context.get_world_size(), device, on_cluster=True)
    clients: dict[str, TeacherClient] = dict(pools)
    status = StatusLog(run.folder / "status.json")

    def warn(line: str) -> None:
        """Write a warning to ``status.json``."""
        status.write(line, verbosity="WARNING")

    away = collectives.from_first(
        lambda: resting(run.partitions.away, run.total_steps, begun_at(each.folder for each in run.students))
    )
    for pool in pools.values():
        pool.say, pool.turn = warn, rank_context.rank
        pool.asker, pool.askers = run.name, run.groups
        pool.rests = pool.has_rested = pool.name in away and not pool.service.pool
    for teacher in run.frozen_teachers:
        if teacher.name not in clients:
            clients[teacher.name] = InlineTeacher(
                teacher, run.grids[teacher.name], str(device), rank_context.world_size
            )
    streams, pauses = Streams(run, rank_context, warn, shared), Pauses()
    watch_notices()
    _await_pools(pools)
    for teacher in run.frozen_teachers:
        if teacher.name in pools:
            pools[teacher.name].choose_transport(
                device.type, cached=run.feature_cache is not None and teacher.service.cache
            )
    with through_cache(run, clients, rank_context.rank) as cached:
        run_worker(run, rank_context, cached, streams.read, pauses, streams.held)


def _await_pools(pools: dict[str, RemoteTeacher]) -> None:
    """Wait until the teacher pools are ready; an error of one is raised on every rank."""

    def wait() -> None:
        """Wait for each pool in turn."""
        for pool in pools.values():
            if not pool.rests:
                await_pool(pool)

    collectives.from_first(wait)
