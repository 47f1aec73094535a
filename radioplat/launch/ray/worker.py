"""One training worker inside Ray Train: device, teacher clients, its micro-batches."""

from __future__ import annotations

from functools import partial

import ray
import ray.train
import ray.train.torch
from torch.distributed import ProcessGroup

from radioplat.common import collectives
from radioplat.common.cpu_threads import share_cores
from radioplat.data.batch import Batch
from radioplat.data.loading.closeable import CloseableIterator
from radioplat.data.loading.ray_stream import open_stream, read_in_turn, read_stream, steps_per_dataset
from radioplat.design.run import Run
from radioplat.errors import RadioplatError
from radioplat.teachers.serving.client import InlineTeacher, TeacherClient
from radioplat.teachers.serving.remote_teacher import RemoteTeacher, await_pool
from radioplat.tracking.status import StatusLog
from radioplat.training.engine import deepspeed_compat
from radioplat.training.feed.feature_cache import through_cache
from radioplat.training.guards.pause import Pauses, watch_notices
from radioplat.training.loop.collective_timeout import collective_timeout
from radioplat.training.loop.worker import run_worker
from radioplat.training.watch.rank_context import RankContext


def work(run: Run, pools: dict[str, RemoteTeacher]) -> None:
    """Train ``run`` on this rank.

    Raises:
        RadioplatError: has the attribute ``agreed`` if every rank raises it.
    """
    context = ray.train.get_context()
    device = ray.train.torch.get_device()
    timeout = collective_timeout(run.spec)
    deepspeed_compat.init_distributed("nccl" if device.type == "cuda" else "gloo", timeout)
    if device.type == "cpu":
        share_cores(run.spec.cluster.cpus_per_worker, context.get_local_world_size())
    rank_context = RankContext(context.get_world_rank(), context.get_world_size(), device, on_cluster=True)
    clients: dict[str, TeacherClient] = dict(pools)
    status = StatusLog(run.folder / "status.json")
    for pool in pools.values():
        pool.say, pool.turn = lambda line: status.write(line, verbosity="WARNING"), rank_context.rank
    for teacher in run.frozen_teachers:
        if teacher.name not in clients:
            clients[teacher.name] = InlineTeacher(
                teacher, run.grids[teacher.name], str(device), rank_context.world_size
            )
    channel, pauses = collectives.open_channel(timeout), Pauses()
    watch_notices()
    _await_pools(pools, rank_context.rank)
    for teacher in run.frozen_teachers:
        if teacher.name in pools:
            pools[teacher.name].choose_transport(
                device.type, cached=run.spec.feature_cache.dir is not None and teacher.service.cache
            )
    with through_cache(run, clients, rank_context.rank) as cached:
        open_batches = partial(_stream, run, rank_context, channel)
        run_worker(run, rank_context, cached, open_batches, pauses)


def _await_pools(pools: dict[str, RemoteTeacher], rank: int) -> None:
    """Wait until the teacher pools are ready; an error of one is raised on every rank."""
    problem = None
    if rank == 0:
        try:
            for pool in pools.values():
                await_pool(pool)
        except RadioplatError as error:
            problem = error
    problem = collectives.broadcast_object(problem)
    if problem is not None:
        with collectives.mark_agreed():
            raise problem


def _stream(
    run: Run, rank_context: RankContext, channel: ProcessGroup | None, start: int, stop: int
) -> CloseableIterator[Batch]:
    """Iterate over this rank's micro-batches of steps ``start`` to ``stop``; rank 0 creates each Ray dataset.

    Runs in the feeder's thread, so it needs its own process group, ``channel``: the training thread uses the default
    group at the same time.
    """
    schedule, dataset = run.micro_batch_schedule(rank_context.world_size), run.spec.dataset

    def part(first: int, last: int) -> CloseableIterator[Batch]:
        """Open the Ray dataset of steps ``first`` to ``last``."""
        iterators = None
        if rank_context.rank == 0:
            iterators = open_stream(
                run.reader_arguments,
                schedule,
                first,
                last,
                tasks=dataset.workers * rank_context.world_size,
                cpus_per_task=run.spec.cluster.cpus_per_decode,
            )
        return read_stream(collectives.broadcast_object(iterators, channel)[rank_context.rank])

    return read_in_turn(part, start, stop, steps_per_dataset(schedule), schedule.per_rank)
