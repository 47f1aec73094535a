"""One training worker inside Ray Train: device, teacher clients, its micro-batches."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from functools import partial

import ray
import ray.train
import ray.train.torch
from ray.data import DataIterator
from torch.distributed import ProcessGroup

from radioplat.common import collectives
from radioplat.common.cpu_threads import share_cores
from radioplat.data.batch import Batch
from radioplat.data.loading.closeable import CloseableIterator
from radioplat.data.loading.ray_stream import open_stream, read_in_turn, read_stream, steps_per_dataset
from radioplat.data.order.micro_batch_schedule import MicroBatchSchedule
from radioplat.design.run import Run
from radioplat.teachers.serving.client import InlineTeacher, TeacherClient
from radioplat.teachers.serving.remote_teacher import RemoteTeacher, await_pool
from radioplat.tracking.status import StatusLog
from radioplat.training.engine import process_group
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
    for pool in pools.values():
        pool.say, pool.turn = lambda line: status.write(line, verbosity="WARNING"), rank_context.rank
    for teacher in run.frozen_teachers:
        if teacher.name not in clients:
            clients[teacher.name] = InlineTeacher(
                teacher, run.grids[teacher.name], str(device), rank_context.world_size
            )
    streams, pauses = Streams(run, rank_context, collectives.open_channel(timeout)), Pauses()
    watch_notices()
    _await_pools(pools)
    for teacher in run.frozen_teachers:
        if teacher.name in pools:
            pools[teacher.name].choose_transport(
                device.type, cached=run.feature_cache is not None and teacher.service.cache
            )
    with through_cache(run, clients, rank_context.rank) as cached:
        run_worker(run, rank_context, cached, streams.read, pauses)


def _await_pools(pools: dict[str, RemoteTeacher]) -> None:
    """Wait until the teacher pools are ready; an error of one is raised on every rank."""

    def wait() -> None:
        """Wait for each pool in turn."""
        for pool in pools.values():
            await_pool(pool)

    collectives.from_first(wait)


class Streams:
    """This rank's micro-batches, from Ray datasets that rank 0 opens for all ranks.

    Args:
        channel: a process group for the feeder's thread, because the training thread uses the default group at the same
            time.
    """

    def __init__(self, run: Run, rank_context: RankContext, channel: ProcessGroup | None) -> None:
        self._run, self._rank_context, self._channel = run, rank_context, channel
        # Ray does not count the handles that other ranks get by a broadcast: without these references the actor behind
        # a dataset would end when rank 0 has read its part, and with it the parts of slower ranks. A rank opens a
        # dataset while it reads the one before, so once all have opened it, all have read the last but one.
        self._newest: deque[list[DataIterator]] = deque(maxlen=2)

    def read(self, start: int, stop: int) -> CloseableIterator[Batch]:
        """Iterate over this rank's micro-batches of steps ``start`` to ``stop``."""
        schedule = self._run.micro_batch_schedule(self._rank_context.world_size)
        part = partial(self._open, schedule)
        return read_in_turn(part, start, stop, steps_per_dataset(schedule), schedule.per_rank)

    def _open(self, schedule: MicroBatchSchedule, first: int, last: int) -> CloseableIterator[Batch]:
        """Open the dataset of steps ``first`` to ``last``."""
        iterators = None
        if self._rank_context.rank == 0:
            iterators = open_stream(
                self._run.reader_arguments,
                schedule,
                first,
                last,
                tasks=self._run.spec.dataset.workers * self._rank_context.world_size,
                cpus_per_task=self._run.spec.cluster.cpus_per_decode,
            )
        iterators = collectives.broadcast_object(iterators, self._channel)
        collectives.barrier(self._channel)  # gloo's broadcast to 8 or more ranks does not wait for the last ones
        self._newest.append(iterators)
        return read_stream(iterators[self._rank_context.rank])
