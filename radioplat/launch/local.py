"""Run in this process, without Ray; the order, views, teachers, objective and loop are the same."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from itertools import chain

import torch

from radioplat.common.cpu_threads import decode_threads, limit_torch_threads
from radioplat.common.sigterm import forwarding_sigterm, stop_requested
from radioplat.data.batch import Batch
from radioplat.data.loading.run_data import open_reader
from radioplat.data.loading.threads import load_micro_batches
from radioplat.data.order.micro_batch_schedule import MicroBatchSchedule
from radioplat.data.storage.outage import is_waiting
from radioplat.design.run import Run
from radioplat.errors import OutOfMemory, Stopped
from radioplat.launch.ray.joined_pools import joined_pools
from radioplat.teachers.serving.client import InlineTeacher, TeacherClient
from radioplat.training.feed.feature_cache import through_cache
from radioplat.training.feed.feeder import prefetch_depth
from radioplat.training.guards.pause import Paused, ask_to_pause, is_stepping
from radioplat.training.loop import process_group
from radioplat.training.loop.garbage import free_memory
from radioplat.training.loop.worker import OpenBatches, run_worker
from radioplat.training.watch.rank_context import RankContext

HEAVY = 4e9  # operations per image; 0.1 s of one core


def run_local(run: Run, say: Callable[[str], None]) -> None:
    """Train in this process, on its GPU if there is one; ``say`` gets each line for the user.

    Raises:
        Stopped: SIGTERM was received, and a checkpoint is saved.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    _set_single_process_environment()
    if device.type == "cpu":
        say("this machine has no GPU: the run has one CPU worker")
    process_group.join("nccl" if device.type == "cuda" else "gloo")
    pools = joined_pools(run, device.type)
    clients: dict[str, TeacherClient] = {
        t.name: pools.get(t.name) or InlineTeacher(t, run.grids[t.name], str(device)) for t in run.frozen_teachers
    }
    dataset = run.spec.dataset

    threads = decode_threads(dataset.workers)

    def batches(start: int, stop: int, schedule: MicroBatchSchedule) -> Iterator[Batch]:
        """Iterate over the micro-batches of steps ``start`` to ``stop``."""
        wanted = chain.from_iterable(schedule.of_rank(step, 0) for step in range(start, stop))
        reader = open_reader(*run.reader_arguments)
        return load_micro_batches(reader, wanted, threads=threads, prefetch=prefetch_depth(run.spec))

    torch_threads = limit_torch_threads(0 if _is_heavy(run) else threads, fixed=run.spec.train.threads)
    with torch_threads, through_cache(run, clients, rank=0) as cached:
        _run_and_restart(run, RankContext(0, 1, device), cached, batches, say)


def _run_and_restart(
    run: Run,
    context: RankContext,
    clients: dict[str, TeacherClient],
    open_batches: OpenBatches,
    say: Callable[[str], None],
) -> None:
    """Train, and restart from the last checkpoint after running out of memory, as Ray Train does on a cluster."""
    while not stop_requested():
        try:
            with forwarding_sigterm(_stop):
                return run_worker(run, context, clients, open_batches)
        except Paused:
            break
        except OutOfMemory as error:
            message = str(error)
        # After the except clause, because the error refers to frames that refer to the tensors that fill the memory.
        say(message)
        free_memory(context.device)
    raise Stopped


def _stop() -> None:
    """On SIGTERM, pause after the current step; before the first step and during a storage outage, stop at once."""
    if not is_stepping() or is_waiting():
        raise Stopped
    ask_to_pause("stopped", "SIGTERM")


def _is_heavy(run: Run) -> bool:
    """Return whether the teachers need so long per image that decoding, some milliseconds, needs no core of its own.

    Each parameter costs two operations at each position of the feature map. For a CNN, whose early maps are finer,
    this is a lower bound.
    """
    infos = (run.infos[teacher.name] for teacher in run.frozen_teachers)
    return sum(2 * i.parameters * i.grid[0] * i.grid[1] for i in infos) > HEAVY


def _set_single_process_environment() -> None:
    """Set the environment variables of a process group of one rank, on a free loopback port."""
    # DeepSpeed reads these also if an earlier run of this process has left the process group initialized.
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1")
    if torch.distributed.is_initialized():
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(probe.getsockname()[1]))
