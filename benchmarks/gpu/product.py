"""The rungs that run radioplat's own training loop, each with one more of its parts: feeding, teachers, decoding."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.profiler import record_function

from benchmarks.gpu import hook
from benchmarks.gpu.bare import ENGINES, by_hand, gflop_of, peak_memory, reset_peak, with_mfu
from benchmarks.gpu.inputs import IMAGES, write_shards
from benchmarks.gpu.interleave import speeds
from benchmarks.gpu.models import spec_of, write_weights
from benchmarks.gpu.setting import Setting, Unmeasured
from benchmarks.gpu.trace import TEACHER
from radioplat.common import collectives
from radioplat.data.batch import Batch, View
from radioplat.data.loading.run_data import RunData, open_reader
from radioplat.data.loading.threads import load_micro_batches
from radioplat.data.order.micro_batch_schedule import MicroBatchSchedule
from radioplat.design.run import Run, keep_data
from radioplat.launch.preflight.steps import prepare
from radioplat.models.features import Features
from radioplat.spec.schema.cluster import Placement, Transport
from radioplat.spec.schema.dataset import SplitConfig, TarSource
from radioplat.spec.schema.root import Spec
from radioplat.spec.schema.train import IntervalUnit
from radioplat.teachers.serving.client import Held, InlineTeacher, Pending, TeacherClient
from radioplat.teachers.serving.transport import pack, to_host
from radioplat.training.feed.feeder import prefetch_depth
from radioplat.training.loop.worker import OpenBatches, run_worker
from radioplat.training.watch.rank_context import RankContext

ENDLESS = 1_000_000  # steps; the hook ends the run
DIFFERENT = 4  # micro-batches of pixels, and answers
SAVES, SAVE_EVERY, EVERY = 2, 3, 2  # of `stalls`: validations; steps between checkpoints; checkpoints to a validation
HELD_OUT, BANK = 64, 4  # images of a validation, and micro-batches of images with which they are compared


class Known:
    """A teacher whose answers are in host memory, as the object store would hold them."""

    def __init__(self, name: str, answers: list[Any]) -> None:
        self.name, self._answers = name, answers

    def share(self, pixels: np.ndarray, batch: Batch | None = None) -> np.ndarray:
        """Send nothing."""
        return pixels

    def submit(self, shared: Any, micro_batch: int) -> Pending:
        """Return one of the answers."""
        return lambda: self._answers[micro_batch % len(self._answers)]

    def precision(self) -> str:
        """Return the dtype of the answers."""
        return "bfloat16"

    def held(self) -> Held:
        """Return that it takes nothing."""
        return Held(1, 0.0, 0.0)


class Marked:
    """A client whose forwards are marked for the profiler, wherever they run."""

    def __init__(self, client: TeacherClient) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def submit(self, shared: Any, micro_batch: int) -> Pending:
        """Mark the request, in which a teacher in this process computes on a GPU, and the wait for its answer."""
        with record_function(TEACHER):
            pending = self._client.submit(shared, micro_batch)

        def answer() -> Any:
            with record_function(TEACHER):
                return pending()

        return answer


def rung(setting: Setting, kind: str) -> dict[str, Any]:
    """Measure our training loop with known answers (``copies``), teachers ``inline`` or in actors, or ``decoding``.

    The loop by hand has pinned copies, its teachers in the same process, and no decoding.
    """
    _refuse(setting, kind)
    computes = kind != "copies"
    arguments = [(teacher.arguments, teacher.size) for teacher in setting.teachers] if computes else None
    loop = by_hand(setting, host=True, teachers=arguments)
    run, context = _prepared(setting, _spec(setting, kind), kind)
    ahead = -(-prefetch_depth(run.spec) // setting.micro_batches)
    plan = hook.Plan(setting.device, loop.step, setting.seconds, setting.micro_batches, left_out=ahead)
    reset_peak(setting.device)
    with _clients(setting, run, context, kind) as clients:
        _go(run, context, clients, _decoded(run, context) if kind == "decoding" else _in_memory(run, context), plan)
    gflop = gflop_of(setting, teachers=computes)
    found = with_mfu(speeds(plan.times, setting.images_a_step), setting, gflop)
    return {
        **found,
        **plan.figures,
        "engine": setting.engine,
        "peak_memory_bytes_of_both": peak_memory(setting.device),
    }


def stalls(setting: Setting) -> dict[str, Any]:
    """Seconds by which a checkpoint, and one with a validation by kNN, make a step longer."""
    spec = _spec(setting, "copies")
    held_out = SplitConfig(tar_data_sources=[TarSource(str(_shards(setting, HELD_OUT)))])
    dataset = dataclasses.replace(spec.dataset, val_dataset=held_out, knn_validation=True, knn_max_train_batches=BANK)
    [source] = spec.dataset.train_dataset.tar_data_sources
    source.steps_per_epoch = EVERY * SAVE_EVERY  # a validation follows each epoch
    train = dataclasses.replace(
        spec.train,
        num_epochs=ENDLESS,
        max_steps=None,
        checkpoint_interval=SAVE_EVERY,
        checkpoint_interval_unit=IntervalUnit.step,
        keep_last=1,
    )
    run, context = _prepared(setting, dataclasses.replace(spec, train=train, dataset=dataset), "stalls")
    steps = SAVES * EVERY * SAVE_EVERY
    plan = hook.Plan(setting.device, None, setting.seconds, setting.micro_batches, 0, steps=steps)
    with _clients(setting, run, context, "copies") as clients:
        _go(run, context, clients, _in_memory(run, context), plan)
    kinds: dict[str, list[float]] = {"step": [], "checkpoint": [], "validation": []}
    for number, seconds in plan.periods.items():
        saves, validates = (number + 1) % SAVE_EVERY == 0, (number + 1) % (EVERY * SAVE_EVERY) == 0
        kinds["validation" if validates else "checkpoint" if saves else "step"].append(1e3 * seconds)
    step = statistics.median(kinds["step"])
    found: dict[str, Any] = {"step_ms": step}
    for kind in ("checkpoint", "validation"):
        longer = [ms - step for ms in kinds[kind]]
        found |= {f"{kind}_stall_ms": statistics.median(longer), f"{kind}_stall_spread_ms": [min(longer), max(longer)]}
    share = found["checkpoint_stall_ms"] / (20 * step + found["checkpoint_stall_ms"])
    images = {"held_out": HELD_OUT, "bank": min(IMAGES, BANK * setting.batch)}
    return {**found, "checkpoint_share_at_every_20_steps": share, "validation_images": images}


def _refuse(setting: Setting, kind: str) -> None:
    if kind == "nixl":
        import nixl  # noqa: F401  # its absence makes the rung unmeasured
    if kind in ("store", "nixl"):
        import ray  # noqa: F401
    if kind == "nixl" and setting.device == "cpu":
        raise Unmeasured("NIXL moves features between devices, and there is no GPU")


def _spec(setting: Setting, kind: str) -> Spec:
    """Return the spec of a run without end over the shards."""
    spec = spec_of(setting, *ENGINES[setting.engine])
    source = TarSource(str(_shards(setting, IMAGES)), steps_per_epoch=ENDLESS)
    dataset = dataclasses.replace(
        spec.dataset, workers=_decoders(setting), train_dataset=SplitConfig(tar_data_sources=[source])
    )
    dataset.augmentation.views_per_image = 0  # teachers compute each view
    train = dataclasses.replace(spec.train, num_epochs=1, max_steps=ENDLESS, hooks=["benchmarks.gpu.hook:Turns"])
    cache = dataclasses.replace(spec.feature_cache, enabled=False)
    teachers = spec.teachers
    if kind in ("store", "nixl"):
        transport = Transport.nixl if kind == "nixl" else Transport.object_store
        share = 1 / len(setting.teachers) if setting.device == "cuda" else 0
        place = {"placement": Placement.spread, "transport": transport, "replicas": setting.gpus, "num_gpus": share}
        teachers = {name: dataclasses.replace(service, **place) for name, service in teachers.items()}
    folder = str(Path(setting.scratch) / f"run_{kind}_{os.getppid()}")
    return dataclasses.replace(
        spec, dataset=dataset, train=train, feature_cache=cache, teachers=teachers, results_dir=folder
    )


def _shards(setting: Setting, images: int) -> Path:
    """Return the folder of so many images, written by rank 0."""
    return Path(collectives.from_first(lambda: str(write_shards(setting, images))))


def _decoders(setting: Setting) -> int:
    return max(1, len(os.sched_getaffinity(0)) // setting.gpus - 1)


def _prepared(setting: Setting, spec: Spec, kind: str) -> tuple[Run, RankContext]:
    """Write the teachers' weights and the run's index on rank 0, and design the run alike on all ranks."""
    rank = torch.distributed.get_rank()
    device = torch.device("cuda", torch.cuda.current_device()) if setting.device == "cuda" else torch.device("cpu")

    def design() -> Run:
        """Index, design, and keep the data."""
        write_weights(setting, spec)
        run, data = prepare(spec, "distill", Path(spec.results_dir) / "distill")
        keep_data(run, data)
        return run

    return collectives.from_first(design), RankContext(rank, setting.gpus, device)


def _go(
    run: Run, context: RankContext, clients: dict[str, TeacherClient], batches: OpenBatches, plan: hook.Plan
) -> None:
    """Run the training loop until the hook has measured everything."""
    hook.plan = plan
    with contextlib.suppress(hook.Done):
        run_worker(run, context, clients, batches)


@contextlib.contextmanager
def _clients(setting: Setting, run: Run, context: RankContext, kind: str) -> Iterator[dict[str, TeacherClient]]:
    """Provide the teachers as the rung ``kind`` places them."""
    if kind in ("store", "nixl"):
        with _in_actors(setting, run, context) as pools:
            yield {name: Marked(pool) for name, pool in pools.items()}
    elif kind == "copies":
        yield {t.name: Known(t.name, _answers(run, t.name)) for t in run.frozen_teachers}
    else:
        device = str(context.device)
        yield {t.name: Marked(InlineTeacher(t, run.grids[t.name], device)) for t in run.frozen_teachers}


def _answers(run: Run, name: str) -> list[Any]:
    info, batch = run.infos[name], run.spec.dataset.batch_size
    shapes = (batch, info.summary_dim), (batch, *run.grids[name], info.spatial_dim)
    drawn = ([torch.randn(shape).bfloat16() for shape in shapes] for _ in range(DIFFERENT))
    return [to_host(pack(Features(summary, spatial, {}), 0.0)) for summary, spatial in drawn]


@contextlib.contextmanager
def _in_actors(setting: Setting, run: Run, context: RankContext) -> Iterator[dict[str, Any]]:
    """Start a Ray cluster on this machine, with a replica of each teacher for each rank on shares of the GPUs."""
    import ray

    from radioplat.teachers.serving.remote_teacher import await_pool, start_pool, stop_pool

    def start() -> str:
        """Start the cluster."""
        gpus = setting.gpus if setting.device == "cuda" else 0
        return str(
            ray.init(address="local", num_gpus=gpus, include_dashboard=False, logging_level="error").address_info[
                "address"
            ]
        )

    address = collectives.from_first(start)
    if context.rank:
        ray.init(address=address, logging_level="error")

    def pools() -> dict[str, Any]:
        """Start the pools, and wait for them."""
        started = {t.name: start_pool(t, run.grids[t.name], t.service.num_gpus or 0.0) for t in run.frozen_teachers}
        for pool in started.values():
            await_pool(pool)
        return started

    started = collectives.from_first(pools)
    for pool in started.values():
        pool.turn = context.rank
        pool.choose_transport(context.device.type, cached=False)
    try:
        yield started
    finally:
        collectives.barrier()
        if context.rank == 0:
            for pool in started.values():
                stop_pool(pool)
        ray.shutdown()


def _in_memory(run: Run, context: RankContext) -> OpenBatches:
    """Return micro-batches of random pixels with the ids that the sample order wants."""
    order = RunData.load(run.data_dir, run.spec.dataset.train_dataset).order
    batch = run.spec.dataset.batch_size
    generator = np.random.default_rng(context.rank)
    made = []
    for _ in range(DIFFERENT):
        views = {}
        for view in run.views:
            pixels = generator.integers(0, 256, (batch, 3, view.size, view.size), np.uint8)
            scale = np.diag([1 / view.size, 1 / view.size, 1]).astype(np.float32)
            views[view.name] = View(pixels, np.repeat(scale[None], batch, 0))
        made.append(views)

    def open_batches(start: int, stop: int, schedule: MicroBatchSchedule) -> Iterator[Batch]:
        """Iterate over this rank's micro-batches."""
        weight, label = np.ones(batch, np.float32), np.full(batch, -1, np.int64)
        for number in _numbers(schedule, context.rank, start, stop):
            ids = order.slice(number * batch, (number + 1) * batch).sample_id
            position = np.arange(number * batch, (number + 1) * batch)
            yield Batch(number, made[number % DIFFERENT], ids, position, weight, label)

    return open_batches


def _decoded(run: Run, context: RankContext) -> OpenBatches:
    """Return micro-batches that threads of this process decode, as in a run of one process."""

    def open_batches(start: int, stop: int, schedule: MicroBatchSchedule) -> Iterator[Batch]:
        """Iterate over this rank's micro-batches."""
        wanted = _numbers(schedule, context.rank, start, stop)
        reader, depth = open_reader(*run.reader_arguments), prefetch_depth(run.spec)
        return load_micro_batches(reader, wanted, threads=run.spec.dataset.workers, prefetch=depth)

    return open_batches


def _numbers(schedule: Any, rank: int, start: int, stop: int) -> Iterator[int]:
    return (number for step in range(start, stop) for number in schedule.of_rank(step, rank))
