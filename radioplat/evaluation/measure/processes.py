"""Several processes on one machine that encode for an evaluation and search the bank of kNN (``evaluate.num_gpus``).

Each has its own GPU, or a share of the cores. Batches are distributed in turn and returned in order, so metrics get the
same batches as with one process; each process searches a piece of the bank.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import reduce
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from radioplat.common.cpu_threads import decode_threads, share_cores_among
from radioplat.data.batch import Batch
from radioplat.errors import RadioplatError
from radioplat.evaluation.metrics.knn import Nearest, nearest
from radioplat.evaluation.models.evaluated_model import EvaluatedModel
from radioplat.evaluation.models.open_models import open_evaluated, with_teachers
from radioplat.models.features import Features
from radioplat.spec.schema.root import Spec

WHERE = "evaluate.num_gpus"
_AHEAD = 2  # batches queued in each process


class Processes:
    """``count`` processes with every model of an evaluation; call :meth:`close` at the end."""

    def __init__(self, spec: Spec, checkpoint: Path | None, count: int) -> None:
        gpus = torch.cuda.device_count()
        self._device = "cuda" if gpus else "cpu"
        devices = [f"cuda:{i}" if gpus else "cpu" for i in range(count)]
        # Forks of this process would share its CUDA context and the locks of torch's threads. A fork server has only
        # imported the modules, and started neither.
        server = get_context("forkserver")
        server.set_forkserver_preload([__name__])
        self._workers = [
            ProcessPoolExecutor(1, server, initializer=_begin, initargs=(spec, checkpoint, device, count))
            for device in devices
        ]

    def encode(
        self, batches: Iterator[Batch], models: dict[str, EvaluatedModel]
    ) -> Iterator[tuple[Batch, dict[str, Features]]]:
        """Yield each batch with the features of every model, fp32 on this process's device, in order.

        Raises:
            RadioplatError: as raised in a process, or a process ended.
        """
        sizes = {str(model.size) for model in models.values()}
        waiting: deque[tuple[Batch, Future]] = deque()
        for i, batch in enumerate(batches):
            pixels = {size: batch.views[size].pixels for size in sizes}
            waiting.append((batch, self._submit(i % len(self._workers), _encode, pixels, list(models))))
            if len(waiting) > _AHEAD * len(self._workers):
                yield self._answered(*waiting.popleft())
        while waiting:
            yield self._answered(*waiting.popleft())

    def search(self, bank: torch.Tensor, labels: torch.Tensor) -> Callable[[torch.Tensor, int], Nearest]:
        """Return a function (queries ``[M, D]``, k) -> nearest in ``bank`` ``[N, D]``, of unit length, with ``labels``.

        Each process searches a piece; ties are resolved by the order of the bank, as in one process.
        """
        starts, first = [], 0
        pieces = zip(bank.tensor_split(len(self._workers)), labels.tensor_split(len(self._workers)), strict=True)
        for i, (rows, own) in enumerate(pieces):
            starts.append(self._submit(i, _set_bank, rows.cpu().numpy(), own.cpu().numpy(), first))
            first += len(rows)
        for started in starts:
            _result(started)

        def find(queries: torch.Tensor, k: int) -> Nearest:
            """Search every piece and merge the results."""
            answers = [self._submit(i, _nearest, queries.cpu().numpy(), k) for i in range(len(self._workers))]
            parts = [Nearest(*(torch.from_numpy(each).to(queries.device) for each in _result(a))) for a in answers]
            return reduce(lambda merged, part: merged.merged(part, k), parts)

        return find

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers:
            with contextlib.suppress(BrokenProcessPool):
                worker.submit(_end)
            worker.shutdown()

    def _answered(self, batch: Batch, answer: Future) -> tuple[Batch, dict[str, Features]]:
        arrays = _result(answer)
        return batch, {name: a.map(lambda each: torch.from_numpy(each).to(self._device)) for name, a in arrays.items()}

    def _submit(self, i: int, function: Callable[..., Any], *arguments: Any) -> Future:
        try:
            return self._workers[i].submit(function, *arguments)
        except BrokenProcessPool:
            raise _ended() from None


def _result(answer: Future) -> Any:
    try:
        return answer.result()
    except BrokenProcessPool:
        raise _ended() from None


def _ended() -> RadioplatError:
    hint = "It may have run out of memory: lower evaluate.num_gpus or evaluate.batch_size."
    return RadioplatError("a process of the evaluation ended", where=WHERE, hint=hint)


# State of one of the processes, and the resources that it closes at its end.
_own: dict[str, Any] = {}
_open = contextlib.ExitStack()


def _begin(spec: Spec, checkpoint: Path | None, device: str, count: int) -> None:
    if device == "cpu":
        share_cores_among(count, decode_threads(spec.dataset.workers))
    _own.update(spec=spec, checkpoint=checkpoint, device=device)


def _end() -> None:
    """Write new features to the cache: exit handlers do not run in these processes."""
    _open.close()


def _encode(pixels: dict[str, np.ndarray], names: list[str]) -> dict[str, Features]:
    """Compute features as numpy arrays: torch would send each tensor through a file."""
    if "models" not in _own:  # here and not in the initializer, so that an error is returned with its message
        spec, device = _own["spec"], _own["device"]
        opened = open_evaluated(spec, _own["checkpoint"], device)
        _own["models"] = _open.enter_context(with_teachers(spec, opened, device))
    views = {size: torch.from_numpy(each) for size, each in pixels.items()}
    models = {name: _own["models"][name] for name in names}
    return {n: s.encode(views[str(s.size)]).map(lambda t: t.cpu().numpy()) for n, s in models.items()}


def _set_bank(bank: np.ndarray, labels: np.ndarray, first_row: int) -> None:
    device = _own["device"]
    _own["bank"] = torch.from_numpy(bank).to(device), torch.from_numpy(labels).to(device), first_row


def _nearest(queries: np.ndarray, k: int) -> tuple[np.ndarray, ...]:
    bank, labels, first_row = _own["bank"]
    neighbours = nearest(bank, labels, torch.from_numpy(queries).to(bank.device), k, first_row)
    return tuple(each.cpu().numpy() for each in neighbours)
