"""Run on a Ray cluster: teachers are actors, Ray Data streams the samples, Ray Train runs the workers."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial

import ray
from ray import cloudpickle
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig

from radioplat.cluster.ray_cluster import joined, ray_train_settings, worker_resources
from radioplat.cluster.resources import teacher_gpus, teachers_and_decoding
from radioplat.common.sigterm import forwarding_sigterm, install_handler, stop_requested
from radioplat.data.loading.shared_reads import SharedReads
from radioplat.design.run import Run
from radioplat.design.stages import resting
from radioplat.errors import RadioplatError, Stopped, TrainingError, wrapped_error
from radioplat.launch.ray.elastic import ElasticTrainer
from radioplat.launch.ray.entry import train_function
from radioplat.launch.ray.groups import groups_of, recorded, run_side_by_side
from radioplat.spec.schema.cluster import Placement
from radioplat.teachers.serving.remote_teacher import RemoteTeacher, start_pool, stop_pool
from radioplat.tracking.attempts.attempts import LOST, Attempts
from radioplat.tracking.attempts.logs import attempt_folder, begun
from radioplat.training.checkpoints.checkpoint import begun_at
from radioplat.training.watch.collective_timeout import collective_timeout


def run_on_ray(run: Run, say: Callable[[str], None]) -> None:
    """Train on a cluster; results are in the run's folder. ``say`` gets each line for the user.

    Raises:
        PlacementError: the cluster can never have the resources of the run.
        TrainingError, WeightsError: raised in a worker or a teacher.
        Stopped: SIGTERM was received, and a checkpoint is saved.
    """
    groups = groups_of(run)
    with (
        joined(run.spec, run.frozen_teachers, len(groups)) as gpus,
        _on_sigterm(),
        _pools(run, gpus) as pools,
        ray_train_settings(),
        _shared_reads(groups) as shared,
    ):
        fewest, most = run.spec.worker_bounds
        if not gpus:
            count = f"{most}" if fewest == most else f"{fewest} to {most}"
            of_each = f" for each of {len(groups)} students" if shared else ""
            say(f"this cluster has no GPU: the run has {count} CPU worker(s){of_each}")
        trainers = [_trainer(group, pools, shared, gpus) for group in groups]

        def stop() -> None:
            """Ask all groups to save and end."""
            for trainer in trainers:
                trainer.stop()

        with forwarding_sigterm(stop):
            if shared is None:
                _fit(run, trainers[0])
                return

            at_work, lock = {group.name for group in groups}, threading.Lock()

            def fit(group: Run, trainer: ElasticTrainer) -> None:
                """Train a group; the others go on without it."""
                try:
                    with recorded(group, say):
                        _fit(group, trainer)
                except RadioplatError as error:
                    with lock:
                        at_work.discard(group.name)
                        others = ", ".join(sorted(at_work))
                    say(f"{group.name} has ended: {error}" + (f"; still at work: {others}" if others else ""))
                    raise
                finally:
                    with lock:
                        at_work.discard(group.name)
                    shared.of(group.name).leave()

            pairs = zip(groups, trainers, strict=True)
            run_side_by_side([partial(fit, group, trainer) for group, trainer in pairs], stop)
            if (counts := shared.counts()) is not None:
                say(f"micro-batches: {counts['read']} read, {counts['shared']} taken from another student's workers")


def _trainer(run: Run, pools: dict[str, RemoteTeacher], shared: SharedReads | None, gpus: bool) -> ElasticTrainer:
    """Return the trainer of a group of workers, which leaves the other groups their fewest workers."""
    spec = run.spec
    fewest, most = spec.worker_bounds
    outside = teachers_and_decoding(spec, run.frozen_teachers, gpus)
    each = {
        "CPU": spec.cluster.cpus_per_worker,
        **({"GPU": 1.0} if gpus else {}),
        **worker_resources(spec, ray.cluster_resources()),
    }
    others = {name: amount * fewest * (run.groups - 1) for name, amount in each.items()}
    others["CPU"] += outside.cpus
    others["GPU"] = others.get("GPU", 0.0) + outside.gpus
    return ElasticTrainer(
        train_function,
        train_loop_config={"arguments": cloudpickle.dumps((run, pools, shared and shared.of(run.name)))},
        torch_config=TorchConfig(
            backend="nccl" if gpus else "gloo", timeout_s=int(collective_timeout(spec).total_seconds())
        ),
        scaling_config=ScalingConfig(
            num_workers=most if fewest == most else (fewest, most),
            elastic_resize_monitor_interval_s=spec.train.resize_interval_s,
            use_gpu=gpus,
            resources_per_worker=each,
        ),
        run_config=RunConfig(
            name="ray_train",
            storage_path=str(run.folder / "ray"),
            failure_config=FailureConfig(max_failures=spec.train.most_failures, max_preemption_failures=-1),
        ),
        folder=run.folder,
        others=others,
    )


def _fit(run: Run, trainer: ElasticTrainer) -> None:
    """Run the workers of a group to the end.

    Raises:
        TrainingError, WeightsError: raised in a worker or a teacher.
        Stopped: SIGTERM was received, and a checkpoint is saved.
    """
    before = Attempts(run.folder).last
    try:
        with _interruptible():
            ended = trainer.fit().return_value
    except Exception as error:
        cause = wrapped_error(error)
        if stop_requested() and cause is None:
            raise Stopped from None
        cause = cause or _lost_too_often(run, before)
        raise cause if cause is not None else error from None
    if ended is not None:
        raise ended


@contextlib.contextmanager
def _shared_reads(groups: list[Run]) -> Iterator[SharedReads | None]:
    """Start what several groups of workers read together; None for one group."""
    if len(groups) == 1:
        yield None
        return
    shared = SharedReads([group.name for group in groups])
    try:
        yield shared
    finally:
        shared.end()


@contextlib.contextmanager
def _on_sigterm() -> Iterator[None]:
    """Install our handler of SIGTERM again, because ray.init has replaced it."""
    install_handler()
    yield


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Raise ``KeyboardInterrupt`` on SIGINT, and restore the handler afterwards. Ray Train would end the process with
    exit status 0, which means success, and keep its own handler."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    except SystemExit as ended:
        raise KeyboardInterrupt from ended
    finally:
        if threading.current_thread() is threading.main_thread():  # Ray Train sets a handler only there
            signal.signal(signal.SIGINT, before if before is not None else signal.SIG_DFL)


@contextlib.contextmanager
def _pools(run: Run, gpus: bool) -> Iterator[dict[str, RemoteTeacher]]:
    """Start the run's teacher pools and stop them at the end. They load weights while the workers start, except those
    that the stage in which the run begins is taught without."""
    pools: dict[str, RemoteTeacher] = {}
    away = resting(run.partitions.away, run.total_steps, begun_at(each.folder for each in run.students))
    try:
        for teacher in run.frozen_teachers:
            if teacher.service.placement is not Placement.inline:
                cards = teacher_gpus(teacher.service.num_gpus, gpus)
                # A pool serves all attempts of this command, so its log is in the folder of the first of them.
                log = attempt_folder(run.folder, begun(run.folder) + 1) / f"teacher_{teacher.name}.log"
                rests = teacher.name in away
                pools[teacher.name] = start_pool(teacher, run.grids[teacher.name], cards, log, rests)
        yield pools
    finally:
        for pool in pools.values():
            stop_pool(pool)


def _lost_too_often(run: Run, before: int) -> TrainingError | None:
    """Return the error of a run whose workers were lost too often, from the last end in ``attempts.jsonl``.

    Args:
        before: number of the last attempt before this command.

    Returns:
        None if the last attempt is not of this command, or its workers were not lost.
    """
    events = Attempts(run.folder).read()
    if not events or events[-1].attempt <= before or events[-1].cause not in LOST:
        return None
    limit = run.spec.train.most_failures
    return TrainingError(
        f"the workers were lost again after {limit} restarts in a row without a new checkpoint: {events[-1].cause} "
        f"({events[-1].detail})",
        where="train.max_failures",
        hint=f"radioplat diagnose {run.folder} shows why. The same command goes on from the last checkpoint.",
    )
