"""Ray Data for many ranks without models: micro-batches of tiny images are read, decoded, handed out and consumed.

A step has 256 micro-batches at any number of ranks, so the work is equal. Ranks are threads, eight of them share an
execution as the ranks of a node do, and a process has the ranks of several such nodes. Nothing is decoded before all
executions are open. Executions are counted by Ray Data's own actor for statistics, where each registers.
"""

from __future__ import annotations

import contextlib
import io
import tarfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil

MICRO_BATCHES = 256  # of a step, one image each
NODE = 8  # ranks that share an execution
HOSTS = 8  # most processes of ranks
BLOCK = 32  # micro-batches of a block: they are small
SIZE, SHARDS, IMAGES = 16, 40, 50  # pixels of an image; images of a shard
# Kinds of Ray's processes by a part of their titles; one that decodes is idle between its tasks.
TITLES = {"::SplitCoordinator": "coordinators", "::StreamHost": "ranks", "_ReadSpan": "decode", "::IDLE": "decode"}
KINDS = ("coordinators", "decode", "ranks")


def stream(world: int, steps: int, scratch: Path, span: int | None = None) -> dict[str, float]:
    """Read ``steps`` steps on ``world`` ranks of the joined cluster.

    Args:
        span: steps of an execution; default: as many as in a run.

    Returns:
        ``steps_s``: steps a second of all ranks; ``wait_s``: longest wait of a rank for a batch behind its first;
        ``executions``: that Ray Data started; ``nodes``: groups of ranks; ``restarts``: executions behind the first of
        each node; ``open_s``: seconds until all were open; CPU milliseconds a micro-batch; MB (PSS) of a coordinator.

    Raises:
        RuntimeError: a rank got other micro-batches than its own, or in another order.
    """
    import ray
    from ray.data._internal.stats import get_or_create_stats_actor

    arguments = write_images(scratch)
    nodes = [list(range(at, min(at + NODE, world))) for at in range(0, world, NODE)]
    stats, begin = get_or_create_stats_actor(), time.time()
    earlier = len(ray.get(stats.get_datasets.remote()))
    hosts = [
        ray.remote(num_cpus=0)(StreamHost).remote(arguments, world, nodes[at::HOSTS], steps, span)
        for at in range(min(HOSTS, len(nodes)))
    ]
    ray.get([host.open.remote() for host in hosts])
    opened, before = time.time(), _used()
    reads = ray.get([host.read.remote() for host in hosts])
    after = _used()
    executions = len(ray.get(stats.get_datasets.remote())) - earlier
    each = MICRO_BATCHES * steps
    return {
        "steps": steps,
        "steps_s": steps / (max(end for end, _ in reads) - opened),
        "wait_s": max(wait for _, wait in reads),
        "executions": executions,
        "nodes": len(nodes),
        "restarts": executions - len(nodes),
        "open_s": opened - begin,
        **{f"{kind}_ms": 1e3 * (after[kind][0] - before[kind][0]) / each for kind in KINDS},
        "coordinator_mb": after["coordinators"][1] / max(1, after["coordinators"][2]),
    }


def _used() -> dict[str, tuple[float, float, int]]:
    """Return CPU seconds, MB (PSS) and number of this cluster's processes by kind."""
    found = {kind: (0.0, 0.0, 0) for kind in KINDS}
    for process in psutil.Process().children(recursive=True):
        try:
            title, times = process.cmdline()[0], process.cpu_times()
            memory = process.memory_full_info().pss / 2**20
        except (psutil.Error, IndexError):  # it has ended meanwhile
            continue
        for text, kind in TITLES.items():
            if text in title:
                cpu, mb, count = found[kind]
                found[kind] = (cpu + times.user + times.system, mb + memory, count + 1)
    return found


class StreamHost:
    """An actor body: the ranks of some nodes, a thread each.

    Args:
        arguments: of :func:`radioplat.data.loading.run_data.open_reader`.
        nodes: ranks of each node.
    """

    def __init__(
        self, arguments: tuple, world: int, nodes: list[list[int]], steps: int, span: int | None = None
    ) -> None:
        from radioplat.data.loading.ray_stream import steps_per_execution
        from radioplat.data.order.micro_batch_schedule import MicroBatchSchedule

        self._arguments, self._schedule = arguments, MicroBatchSchedule(MICRO_BATCHES, world)
        self._nodes = [Node(ranks) for ranks in nodes]
        self._steps, self._span = steps, span or steps_per_execution(arguments, self._schedule, len(nodes[0]), BLOCK)

    def open(self) -> None:
        """Open the first execution of each node and wait for its coordinator."""
        for node in self._nodes:
            self._iterators(node, 0, min(self._steps, self._span))
        for node in self._nodes:  # they start side by side
            node.opened[0][0].get_context()

    def read(self) -> tuple[float, float]:
        """Read all steps on all ranks; return the time of the end and the longest wait for a batch."""
        ranks = [(node, rank) for node in self._nodes for rank in node.ranks]
        with ThreadPoolExecutor(len(ranks)) as threads:
            waits = list(threads.map(lambda each: self._read(*each), ranks))
        return time.time(), max(waits)

    def _read(self, node: Node, rank: int) -> float:
        """Read the steps of one rank as its feeder would; return the longest wait behind the first batch."""
        from radioplat.data.loading.ray_stream import read_in_turn, read_stream

        def part(first: int, last: int):
            return read_stream(self._iterators(node, first, last)[node.ranks.index(rank)])

        longest, batches = 0.0, read_in_turn(part, 0, self._steps, self._span, self._schedule, rank)
        wanted = (n for step in range(self._steps) for n in self._schedule.of_rank(step, rank))
        with contextlib.closing(batches):
            for count, number in enumerate(wanted):
                since = time.perf_counter()
                batch = next(batches)
                if count:
                    longest = max(longest, time.perf_counter() - since)
                if batch.micro_batch != number:
                    raise RuntimeError(f"rank {rank} got micro-batch {batch.micro_batch} instead of {number}")
        return longest

    def _iterators(self, node: Node, first: int, last: int) -> list:
        """Return the iterators of an execution; the first rank of the node that asks for it opens it."""
        from radioplat.data.loading.ray_stream import open_stream

        with node.lock:
            if first not in node.opened:
                of_rank = self._schedule.of_rank
                own = [[of_rank(step, rank) for step in range(first, last)] for rank in node.ranks]
                node.opened[first] = open_stream(self._arguments, own, tasks=len(own), cpus_per_task=1, most=BLOCK)
            return node.opened[first]


class Node:
    """Ranks that share executions, and those that they have opened, by the first step."""

    def __init__(self, ranks: list[int]) -> None:
        self.ranks, self.opened, self.lock = ranks, dict[int, list](), threading.Lock()


def write_images(folder: Path) -> tuple[str, str, tuple]:
    """Write shards of noise and a run's data; return the arguments of ``open_reader``."""
    from PIL import Image

    from radioplat.data.index.build import build_index
    from radioplat.data.loading.run_data import RunData, dataset_to_json
    from radioplat.spec.loading.load import load_spec

    shards = folder / "images"
    shards.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for shard in range(SHARDS):
        with tarfile.open(shards / f"{shard:02}.tar", "w") as tar:
            for name, content in _images(rng, Image, shard):
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    sources = {"train_dataset": {"tar_data_sources": [{"root_dir": str(shards)}]}}
    dataset = load_spec({"dataset": sources | {"batch_size": 1}}).dataset
    split = dataset.train_dataset
    data = RunData.create(build_index(split, "d", folder / "index", max_pixels=10**6), split, 10**6)
    data.save(folder / "data")
    return str(folder / "data"), dataset_to_json(dataset), ((str(SIZE), SIZE),)


def _images(rng: np.random.Generator, images, shard: int) -> Iterator[tuple[str, bytes]]:
    """Yield names and JPEG files."""
    for number in range(IMAGES):
        file = io.BytesIO()
        images.fromarray(rng.integers(0, 256, (SIZE, SIZE, 3), np.uint8)).save(file, "JPEG")
        yield f"{shard}_{number}.jpg", file.getvalue()
