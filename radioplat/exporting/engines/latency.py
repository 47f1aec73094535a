"""Latency of an engine: single batches, one after the other, on this machine.

:mod:`radioplat.exporting.latency` calls engines that are compared in turn. On a CPU the wall time of a call is taken,
with images and features where the library reads and writes them; on a GPU CUDA events around the batch, with images and
features on the device and the work replayed as a CUDA graph where the engine can be captured.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from radioplat.exporting.engines.engine_runner import EngineRunner


def timer(runner: EngineRunner, batch: int) -> tuple[Callable[[], float], str]:
    """Return a function that runs one batch of noise images and returns its milliseconds, and the method's name."""
    images = np.random.default_rng(0).random((batch, *runner.record["input_shape"]), dtype=np.float32)
    if runner.on_device is not None:
        return _on_gpu(runner.on_device, images)
    bound = runner.bound
    run: Callable[[], object] = bound(images) if bound is not None else lambda: runner(images)

    def call() -> float:
        """Run the batch; return the milliseconds."""
        start = time.perf_counter()
        run()
        return 1000 * (time.perf_counter() - start)

    return call, "wall time of a call" if bound is None else "wall time of a call, images and features in place"


def _on_gpu(on_device: Callable, images: np.ndarray) -> tuple[Callable[[], float], str]:
    import torch

    batch = torch.from_numpy(images).cuda()
    stream = torch.cuda.Stream()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph, run = torch.cuda.CUDAGraph(), lambda: on_device(batch)
    with torch.cuda.stream(stream):
        for _ in range(3):  # what allocates memory or loads kernels cannot be captured
            run()
    stream.synchronize()
    method = "CUDA events around a CUDA graph"
    try:
        with torch.cuda.graph(graph, stream=stream):
            kept = run()  # noqa: F841 - the graph writes to its memory
        run = graph.replay
    except RuntimeError:
        method = "CUDA events"

    def call() -> float:
        """Run the batch; return the milliseconds between the events."""
        with torch.cuda.stream(stream):
            start.record()
            run()
            end.record()
        end.synchronize()
        return start.elapsed_time(end)

    return call, method
