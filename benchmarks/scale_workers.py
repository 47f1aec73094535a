"""What ``benchmarks.scale`` runs in Ray's processes: the control plane of training workers, without their GPUs.

A logical worker is a thread; several share a process, its sources of the order and nothing else. Torch is imported by
rank 0 alone, which writes the checkpoints.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np

from benchmarks.array_source import ArraySource
from radioplat.data.batch import Batch, View
from radioplat.data.ledger.ledger import Ledger
from radioplat.data.order.micro_batch_schedule import MicroBatchSchedule
from radioplat.data.order.order import SampleOrder
from radioplat.teachers.serving.client import Pending
from radioplat.teachers.serving.remote_teacher import RemoteTeacher
from radioplat.tracking.status import StatusLog

AHEAD = 2  # micro-batches that are asked of the teachers before their step
ROWS, SHARDS = 500_000, 500  # of each of two sources


@dataclass(frozen=True)
class Plan:
    """What all workers know.

    Attributes:
        folder: of the run.
        world: logical workers; each has one fake GPU.
        batch: images of a micro-batch, of which each worker has one a step.
        seconds: that a step of the student is simulated to take.
        every: steps between two checkpoints.
    """

    folder: str
    world: int
    steps: int
    seconds: float
    batch: int = 2
    size: int = 224
    grid: int = 14
    width: int = 768
    every: int = 5


@dataclass
class Books:
    """What a worker spent: CPU seconds of its thread by part over all steps, and wall seconds it was late each step."""

    rank: int
    cpu: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    late: list[float] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)
    asked: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the block."""
        begin = time.thread_time()
        yield
        self.cpu[name] += time.thread_time() - begin


def sources() -> list[ArraySource]:
    """Two, of half a million rows each, a third of them rejected."""
    found = []
    for number in range(2):
        rng = np.random.default_rng(number)
        weight = rng.random(ROWS) + 0.5
        weight[rng.random(ROWS) < 1 / 3] = 0
        ids = np.arange(number * ROWS, (number + 1) * ROWS)
        found.append(ArraySource(ids, np.arange(ROWS) // (ROWS // SHARDS), weight))
    return found


def order_of(found: list[ArraySource]) -> SampleOrder:
    """The run's order."""
    return SampleOrder(found, [2.0, 1.0], seed=7)


class Host:
    """The actor body: a process of the workers ``ranks``."""

    def __init__(self, plan: Plan, ranks: list[int], pools: list[RemoteTeacher]) -> None:
        self._plan, self._sources = plan, sources()
        rng = np.random.default_rng(0)
        self._pixels = rng.integers(0, 256, (plan.batch, 3, plan.size, plan.size), np.uint8)
        turns = threading.Lock()
        self._workers = [Worker(plan, rank, pools, self._sources, self._pixels, turns) for rank in ranks]

    def ready(self) -> bool:
        """Once every worker has asked each replica: what comes the first time is no step's. Whether torch is here."""
        with ThreadPoolExecutor(len(self._workers)) as threads:
            list(threads.map(lambda worker: worker.warm(), self._workers))
        return "torch" in sys.modules

    def run(self, begin: float) -> tuple[list[Books], float]:
        """All steps, from ``time.time() == begin`` on; books, and CPU seconds of the process with Ray's threads."""
        before = time.process_time()
        with ThreadPoolExecutor(len(self._workers)) as threads:
            books = list(threads.map(lambda worker: worker.run(begin), self._workers))
        return books, time.process_time() - before


class Worker:
    """One rank. Its pools are objects of its own, as those of a training worker are.

    Args:
        turns: threads of one process fetch one after another: a raylet pulls for one thread of a process at a time,
            and each that gets its object seems to stop the pulls of the others, for a second (seen with Ray 2.60.0).
    """

    def __init__(
        self,
        plan: Plan,
        rank: int,
        pools: list[RemoteTeacher],
        found: list[ArraySource],
        pixels: np.ndarray,
        turns: threading.Lock,
    ) -> None:
        self._plan, self._rank, self._pixels, self._turns = plan, rank, pixels, turns
        self._order, self._schedule = order_of(found), MicroBatchSchedule(plan.world, plan.world)
        self._pools = [replace(pool, turn=rank, _replicas=[], _open={}, _restarted=set()) for pool in pools]
        self._ledger = Ledger(Path(plan.folder) / "ledger", rank, 1)
        self._first = _FirstRank(plan) if rank == 0 else None

    def warm(self) -> None:
        """Ask each replica once."""
        for pool in self._pools:
            for answer in [pool.submit(pool.share(self._pixels), 0) for _ in pool.replicas()]:
                with self._turns:
                    answer()

    def run(self, begin: float) -> Books:
        """See :meth:`Host.run`."""
        plan, books = self._plan, Books(self._rank)
        asked: deque[tuple[Batch, list[Pending]]] = deque()
        for step in range(-AHEAD, plan.steps):
            due = begin + (step + AHEAD) * plan.seconds
            time.sleep(max(0.0, due - time.time()))
            if step + AHEAD < plan.steps:
                asked.append(self._ask(step + AHEAD, books))
            if step < 0:
                continue
            batch, pending = asked.popleft()
            self._answers(pending, books)
            with books.part("ledger"):
                self._ledger.record(step, batch)
            if (step + 1) % plan.every == 0 or step + 1 == plan.steps:
                with books.part("ledger"):
                    self._ledger.flush()
                if self._first is not None:
                    with books.part("checkpoint"):
                        self._first.save(step + 1)
            if self._first is not None:
                with books.part("status"):
                    self._first.tell(step + 1)
            books.late.append(time.time() - due)
        if self._first is not None:
            self._first.close()
        return books

    def _ask(self, step: int, books: Books) -> tuple[Batch, list[Pending]]:
        plan = self._plan
        with books.part("order"):
            (micro_batch,) = self._schedule.of_rank(step, self._rank)
            refs = self._order.slice(micro_batch * plan.batch, (micro_batch + 1) * plan.batch)
        view = View(self._pixels, np.broadcast_to(np.eye(3, dtype=np.float32), (plan.batch, 3, 3)))
        ones, none = np.ones(plan.batch, np.float32), np.full(plan.batch, -1)
        batch = Batch(micro_batch, {str(plan.size): view}, refs.sample_id, refs.position, ones, none)
        with books.part("checksum"):
            _ = batch.checksums
        with books.part("ask"):
            shared = self._pools[0].share(view.shown, batch)
            pending = [pool.submit(shared, micro_batch) for pool in self._pools]
        books.asked.update(f"{p.__self__._teacher.name} {p.__self__._replica._actor_id.hex()}" for p in pending)
        return batch, pending

    def _answers(self, pending: list[Pending], books: Books) -> None:
        plan, since = self._plan, time.perf_counter()
        with self._turns, books.part("answer"):
            for answer in pending:
                packed = answer()
                assert packed.summary.shape == (plan.batch, plan.width)
                assert packed.spatial.shape == (plan.batch, plan.grid, plan.grid, plan.width)
        books.waited.append(time.perf_counter() - since)


class _FirstRank:
    """What rank 0 does for all: status lines, checkpoints with their manifests."""

    def __init__(self, plan: Plan) -> None:
        import torch

        from radioplat.spec.schema.train import TrainConfig
        from radioplat.training.checkpoints.run_state import RunState
        from radioplat.training.checkpoints.writer import CheckpointWriter

        self._plan, self._state = plan, RunState(world_size=plan.world, order_hash="simulated")
        folder = Path(plan.folder)
        self._status = StatusLog(folder / "status.json")
        self._writer = CheckpointWriter(folder, TrainConfig(keep_last=2))
        # A ViT's worth of names, with hardly a byte each: bytes on a disk are not what is measured.
        self._tensors = {f"backbone.blocks.{i}.{part}": torch.zeros(1) for i in range(24) for part in range(12)}

    def save(self, step: int) -> None:
        """As a run does, but for the tensors' sizes."""
        from radioplat.models.student.checkpoint import HEADS_FILE, STUDENT_FILE
        from radioplat.training.checkpoints.checkpoint import OPTIMIZER, Snapshot

        state = replace(self._state, global_step=step, samples_consumed=step * self._plan.world * self._plan.batch)
        few = {"head": self._tensors["backbone.blocks.0.0"]}
        files = {STUDENT_FILE: (self._tensors, {}), HEADS_FILE: (few, {}), OPTIMIZER: (self._tensors, {})}
        self._writer.put(Snapshot(f"model_epoch_000_step_{step:05d}", files, json.dumps(asdict(state), indent=1)),
                        lambda path: self._status.write(f"checkpoint {path.name}"))  # fmt: skip
        self._writer.wait()

    def tell(self, step: int) -> None:
        """A line with as many figures as a run of three teachers has."""
        self._status.progress(
            epoch=0,
            max_epoch=1,
            step=step,
            max_step=self._plan.steps,
            seconds_per_step=self._plan.seconds,
            steps_per_epoch=self._plan.steps,
            kpi={f"loss/teacher{i % 3}/{i}": 1 / (i + step) for i in range(30)},
        )

    def close(self) -> None:
        """End the thread that writes."""
        self._writer.close()
        self._status.close()
