"""A run on a Ray cluster: teachers as actors, Ray Data as the stream, Ray Train as the worker group."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import ray
import ray.train
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from torch.distributed import ProcessGroup

from radioplat.data.batch import Batch
from radioplat.data.stream import open_stream, read_stream, steps_per_dataset
from radioplat.distill import ds_compat, group
from radioplat.distill.cluster import joined, teacher_gpus
from radioplat.distill.prepare import Run
from radioplat.distill.worker import Seat, run_worker
from radioplat.errors import RadioplatError
from radioplat.spec.cluster import Placement
from radioplat.teachers.client import InlineTeacher, TeacherClient
from radioplat.teachers.service import RemoteTeacher, await_pool, start_pool, stop_pool


def run_on_ray(run: Run, say: Callable[[str], None]) -> None:
    """Train on a cluster; the results folder says where the run ended. ``say`` gets each line for the user.

    Raises:
        PlacementError: the cluster can never hold the run.
        TrainingError, WeightsError: as raised in a worker or a teacher.
    """
    with joined(run.spec, run.teachers) as gpus, _pools(run, gpus) as pools:
        spec = run.spec
        if not gpus:
            say(f"this cluster has no GPU: the run takes {spec.world_size} CPU worker(s)")
        trainer = TorchTrainer(
            _train_function,
            train_loop_config={"run": run, "pools": pools},
            torch_config=TorchConfig(backend="nccl" if gpus else "gloo"),
            scaling_config=ScalingConfig(
                num_workers=spec.world_size,
                use_gpu=gpus,
                resources_per_worker={
                    "CPU": spec.cluster.cpus_per_worker,
                    **({"GPU": 1} if gpus else {}),
                    **spec.cluster.worker_resources,
                },
            ),
            run_config=RunConfig(
                name="ray_train",
                storage_path=str(run.folder / "ray"),
                failure_config=FailureConfig(max_failures=spec.train.max_failures),
            ),
        )
        try:
            ended = trainer.fit().return_value
        except Exception as error:
            cause = _ours(error)
            raise cause if cause is not None else error from None
        if ended is not None:
            raise ended


@contextlib.contextmanager
def _pools(run: Run, gpus: bool) -> Iterator[dict[str, RemoteTeacher]]:
    pools: dict[str, RemoteTeacher] = {}
    try:
        for teacher in run.teachers:
            if teacher.service.placement is not Placement.inline:
                cards = teacher_gpus(teacher.service.num_gpus, gpus)
                pools[teacher.name] = start_pool(teacher, run.grids[teacher.name], cards)
        for pool in pools.values():
            await_pool(pool)
        yield pools
    finally:
        for pool in pools.values():
            stop_pool(pool)


def _train_function(config: dict[str, Any]) -> RadioplatError | None:
    """What Ray Train runs on each worker.

    Returns:
        The error that all workers ended the run with, if they did: raised, it would only be run into again.
    """
    run: Run = config["run"]
    context = ray.train.get_context()
    device = ray.train.torch.get_device()
    ds_compat.init_distributed("nccl" if device.type == "cuda" else "gloo")
    seat = Seat(context.get_world_rank(), context.get_world_size(), device)
    clients: dict[str, TeacherClient] = dict(config["pools"])
    for teacher in run.teachers:
        if teacher.name not in clients:
            clients[teacher.name] = InlineTeacher(teacher, run.grids[teacher.name], str(device))
    channel = group.open_channel()
    try:
        run_worker(run, seat, clients, lambda start, stop: _stream(run, seat, start, stop, channel))
    except RadioplatError as error:
        if not error.agreed:
            raise
        return error
    return None


def _stream(run: Run, seat: Seat, start: int, stop: int, channel: ProcessGroup | None) -> Iterator[Batch]:
    """This rank's micro-batches of steps ``start`` to ``stop``; rank 0 makes each dataset for all.

    Runs in the feeder's thread, beside the training thread's own messages: hence ``channel``.
    """
    grains, dataset = run.grains(seat.world_size), run.spec.dataset
    span = steps_per_dataset(grains)
    for first in range(start, stop, span):
        last = min(first + span, stop)
        iterators = None
        if seat.rank == 0:
            iterators = open_stream(
                run.reader_arguments,
                grains,
                first,
                last,
                tasks=dataset.workers * seat.world_size,
                cpus_per_task=run.spec.cluster.cpus_per_decode,
            )
        iterators = group.agree(iterators, channel)
        yield from read_stream(iterators[seat.rank])


def _ours(error: BaseException) -> RadioplatError | None:
    """The error of ours inside what Ray raises, wherever it wrapped it."""
    seen: list[BaseException] = [error]
    while seen:
        current = seen.pop()
        if isinstance(current, RadioplatError):
            return current
        inner = [current.__cause__, getattr(current, "cause", None), *getattr(current, "worker_failures", {}).values()]
        seen += [e for e in inner if isinstance(e, BaseException)]
    return None
