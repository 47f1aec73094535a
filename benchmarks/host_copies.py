"""Which bytes does a run copy to its device, from which memory and in which thread? Counted without a GPU.

``python -m benchmarks.host_copies``: `benchmarks.judges.host_copies` puts a substitute in the place of CUDA, and
iterates over two parts of radioplat:

- ``feed``: the way of a micro-batch to the objective, as the training loop goes it, with three teachers: inline on the
  device, in another process (arrays in host memory), and behind the feature cache.
- ``replica``: the requests of several workers to a replica of a teacher, answered as arrays.

The last line on stdout is one JSON object with the figures of each. The targets: ``unpinned_bytes``,
``training_thread_bytes``, ``device_waits`` and ``unpinned_bytes_to_host`` are 0, and there are no ``errors_of_order``.
"""

from __future__ import annotations

import contextlib
import json
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.host_reads import VIT, spec_of, write_images

COUNT = 24  # micro-batches
PARTS = ("feed", "replica")


def main() -> None:
    """Count for each part, and print the figures."""
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as home:
        run = prepare(Path(home))  # apart from the judge, for it asks the machine for its GPUs
        for part in PARTS:
            command = [sys.executable, "-m", "benchmarks.judges.host_copies", f"benchmarks.host_copies:{part}"]
            done = subprocess.run([*command, str(run)], stdout=subprocess.PIPE, text=True, check=True)
            figures[part] = json.loads(done.stdout.strip().splitlines()[-1])
    print(json.dumps(figures))


def prepare(folder: Path) -> Path:
    """Design a run with three teachers in ``folder``; return the file that :func:`feed` and :func:`replica` read."""
    from radioplat.design.run import keep_data
    from radioplat.launch.preflight import steps
    from radioplat.spec.loading.load import load_spec

    write_images(folder / "images")
    spec = spec_of(folder, "copies", VIT)
    spec["distill"]["teacher"].append(dict(spec["distill"]["teacher"][1], name="c"))
    run, data = steps.prepare(load_spec(spec), "distill", folder / "run")
    keep_data(run, data)
    path = folder / "run.pickle"
    path.write_bytes(pickle.dumps(run))
    return path


class Elsewhere:
    """A teacher whose answers are read-only arrays in host memory, as those from Ray's object store."""

    def __init__(self, client: Any) -> None:  # noqa: ANN401
        self._client, self.name = client, client.name

    def share(self, pixels: np.ndarray, batch: Any = None) -> Any:  # noqa: ANN401
        """Share the pixels with the teacher."""
        return self._client.share(pixels, batch)

    def submit(self, shared: Any, micro_batch: int) -> Any:  # noqa: ANN401
        """Request features."""
        from radioplat.teachers.serving.transport import to_host

        pending = self._client.submit(shared, micro_batch)

        def answer() -> Any:  # noqa: ANN401
            """Return the arrays."""
            packed = to_host(pending())
            packed.map(lambda array: array.setflags(write=False))
            return packed

        return answer

    def precision(self) -> str:
        """Return the dtype that the teacher computes in."""
        return self._client.precision()


def feed(path: str) -> Iterator[None]:
    """Yield after each micro-batch of the run in file ``path``, once it is on the device and had its backward pass."""
    import torch

    from radioplat.data.loading.run_data import RunData
    from radioplat.design.tasks.registry import task_of
    from radioplat.teachers.cache.caching_client import CachedTeacher
    from radioplat.teachers.cache.key import SamplePlaces
    from radioplat.teachers.cache.store import FeatureStore
    from radioplat.teachers.serving.client import InlineTeacher
    from radioplat.training.feed.feeder import Feeder
    from radioplat.training.feed.micro_batches import MicroBatches
    from radioplat.training.feed.prefetch import Prefetch
    from radioplat.training.hooks.step_record import StepRecord
    from radioplat.training.watch.phases import Phases

    run = pickle.loads(Path(path).read_bytes())
    data = RunData.load(run.data_dir, run.spec.dataset.train_dataset)
    device = torch.device("cuda", 0)
    objective = task_of(run).objective(run).to(device).train()
    place = {"a": "cuda", "b": "cpu", "c": "cuda"}
    clients: Any = {t.name: InlineTeacher(t, run.grids[t.name], place[t.name]) for t in run.frozen_teachers}
    clients["b"] = Elsewhere(clients["b"])
    store = FeatureStore(str(Path(path).parent / "cache"), 10**9, print)
    clients["c"] = CachedTeacher(clients["c"], b"key", store, SamplePlaces(data.index))
    batches = MicroBatches(run, data.order, device, True, objective, Phases())
    feeder = Feeder(_batches(run), clients, run.frozen_teachers, 4, run.partitions, device)
    with contextlib.closing(Prefetch(feeder, run, device, on_cluster=True)) as ahead:
        for arrival in ahead:
            micro = batches.micro_batch(0, arrival.batch.micro_batch, arrival, StepRecord(0, 0.0))
            objective(micro)["loss"].backward()
            yield
    store.close()


def _batches(run: Any) -> Any:  # noqa: ANN401
    from radioplat.data.loading.run_data import open_reader
    from radioplat.data.loading.threads import load_micro_batches

    return load_micro_batches(open_reader(*run.reader_arguments), iter(range(COUNT)), threads=1, prefetch=2)


def replica(path: str) -> Iterator[None]:
    """Yield after each answer of a replica of the first teacher in file ``path``; four workers ask it at once."""
    from radioplat.teachers.serving.replica import Replica

    run = pickle.loads(Path(path).read_bytes())
    teacher = run.frozen_teachers[0]
    served = Replica(teacher, "cuda")
    pixels = [batch.views[teacher.view].shown for batch in _batches(run)]
    with ThreadPoolExecutor(4) as workers:
        answers = workers.map(lambda shown: served.forward(shown, run.grids[teacher.name], teacher.wanted), pixels)
        for _ in answers:
            yield


if __name__ == "__main__":
    main()
