"""One pass over the training images and one over the held-out images: every model encodes the same decoded images."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from radioplat.common.out_of_memory import names_memory
from radioplat.common.ranks import Ranks
from radioplat.data.batch import Batch
from radioplat.data.loading.split_images import Images
from radioplat.errors import RadioplatError
from radioplat.evaluation.measure.findings import Findings
from radioplat.evaluation.measure.processes import Processes
from radioplat.evaluation.metrics.encoded_batch import EncodedBatch
from radioplat.evaluation.metrics.metric import Metric, Setup, SharedMetric
from radioplat.evaluation.models.evaluated_model import EvaluatedModel
from radioplat.models.features import Features

_Encoded = Iterator[tuple[Batch, dict[str, Features]]]
Encode = Callable[[Iterator[Batch], dict[str, EvaluatedModel]], _Encoded]


def measure(
    setup: Setup,
    metrics: Sequence[Metric],
    bank: Images,
    queries: Images,
    progress: Callable[[int, int], None] | None = None,
    at_once: int = 1,
    processes: Processes | None = None,
) -> None:
    """Pass all images to all metrics; each image is decoded once and encoded once by each model.

    Args:
        bank, queries: training and held-out images.
        progress: called with (batches done, batches in all).
        at_once: number of models that encode a batch in parallel. On a CPU small models gain more from that than from
            more threads in each model.
        processes: if given, these encode instead of this process.

    Raises:
        RadioplatError: a head's width differs from its teacher's, or a metric raises it.
    """
    total = sum(math.ceil(len(images.rows) / images.batch_size) for images in (bank, queries))
    count = _Counter(progress, total)
    with ThreadPoolExecutor(at_once, "encode") as pool:
        encode = processes.encode if processes else _encoder(pool.map)
        _learn(setup, metrics, encode(count(bank.batches()), dict(setup.models)))
        _update(setup, metrics, encode(count(queries.batches()), dict(setup.models)))


def measure_together(
    ranks: Ranks, setup: Setup, metrics: Sequence[SharedMetric], bank: Images, queries: Images
) -> Findings:
    """Pass all images to all metrics, as :func:`measure`; each rank encodes its share of them, on its device.

    Returns:
        The results, the same on every rank.

    Raises:
        RadioplatError, OSError: on every rank, if a metric or the reading of an image raised one on any of them.
    """
    encode = _encoder(map)  # in this thread, which has chosen its device

    def encoded(images: Images) -> _Encoded:
        return encode(images.share(ranks).batches(), dict(setup.models))

    in_memory = names_memory("dataset.val_batch_size")
    ranks.alike(in_memory(lambda: _learn(setup, metrics, encoded(bank))))
    for metric in metrics:
        metric.share_learned(ranks)
    ranks.alike(in_memory(lambda: _update(setup, metrics, encoded(queries))))
    for metric in metrics:
        metric.share(ranks)
    return ranks.alike(lambda: Findings.of(metrics))


def _learn(setup: Setup, metrics: Sequence[Metric], encoded: _Encoded) -> None:
    """Pass training images to the metrics."""
    for batch in _readable(setup, encoded):
        _require_widths(setup, batch.features)
        setup.training.add(batch)
        for metric in metrics:
            metric.learn(batch)


def _update(setup: Setup, metrics: Sequence[Metric], encoded: _Encoded) -> None:
    """Pass held-out images to the metrics."""
    for batch in _readable(setup, encoded):
        setup.held_out.add(batch)
        with torch.inference_mode():
            for metric in metrics:
                metric.update(batch)


def _readable(setup: Setup, encoded: _Encoded) -> Iterator[EncodedBatch]:
    for batch, features in encoded:
        if (readable := EncodedBatch.of(batch, features, setup.models)) is not None:
            yield readable


def _require_widths(setup: Setup, features: Mapping[str, Features]) -> None:
    """Check that each head's width is its teacher's: the heads of a file are identified by name alone."""
    for model in setup.models.values():
        for (teacher, kind), width in model.heads.head_widths.items() if model.heads else ():
            if kind in setup.kinds.get(teacher, ()) and width != (given := features[teacher].of(kind).shape[-1]):
                message = f"its {kind} head for {teacher} is {width} wide, and the teacher's {kind} {given}"
                raise RadioplatError(message, where=model.where, hint="It was made for another teacher of that name.")


class _Counter:
    def __init__(self, progress: Callable[[int, int], None] | None, total: int) -> None:
        self._progress, self._total, self._done = progress, total, 0

    def __call__(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        for batch in batches:
            yield batch
            self._done += 1
            if self._progress:
                self._progress(self._done, self._total)


def _encoder(run: Callable[..., Iterable[Features]]) -> Encode:
    """Return a generator function that encodes in this process; ``run`` calls a function for each model, as ``map``."""

    def encode(
        batches: Iterator[Batch], models: dict[str, EvaluatedModel]
    ) -> Iterator[tuple[Batch, dict[str, Features]]]:
        """Yield each batch with every model's features of it."""
        for batch in batches:
            views = {name: torch.from_numpy(view.pixels) for name, view in batch.views.items()}
            features = run(lambda model: model.encode(views[str(model.size)]), models.values())  # noqa: B023
            yield batch, dict(zip(models, features, strict=True))

    return encode
