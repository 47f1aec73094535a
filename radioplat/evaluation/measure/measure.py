"""One pass over the bank and one over the queries, every model on the same decoded images."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass

import torch

from radioplat.data.batch import Batch
from radioplat.data.loading.split_images import Images
from radioplat.errors import RadioplatError
from radioplat.evaluation.measure.findings import Findings
from radioplat.evaluation.measure.held_out import HeldOut
from radioplat.evaluation.measure.processes import Processes
from radioplat.evaluation.measure.rows import Rows
from radioplat.evaluation.metrics.feature_similarity import Likeness
from radioplat.evaluation.metrics.fidelity import TeacherMean
from radioplat.evaluation.metrics.knn import knn_accuracy
from radioplat.evaluation.metrics.linear_probe import linear_probe
from radioplat.evaluation.metrics.zero_shot import zero_shot_accuracy
from radioplat.evaluation.models.evaluated_model import EvaluatedModel
from radioplat.models.features import Features
from radioplat.spec.schema.evaluate import EvaluateConfig

Encoded = Callable[[Iterator[Batch], dict[str, EvaluatedModel]], Iterator[tuple[Batch, dict[str, Features]]]]


@dataclass(frozen=True)
class Texts:
    """Class names in the space of a teacher: ``[C, D]`` of unit length, by label."""

    teacher: str
    embeddings: torch.Tensor


def measure(
    models: dict[str, EvaluatedModel],
    kinds: dict[str, list[str]],
    bank: Images,
    queries: Images,
    config: EvaluateConfig,
    progress: Callable[[int, int], None] | None = None,
    at_once: int = 1,
    texts: Texts | None = None,
    seed: int = 0,
    processes: Processes | None = None,
    reference: str | None = None,
) -> Findings:
    """Everything that training and held-out images tell of every model; each image is read and encoded once.

    Args:
        kinds: teacher -> which of its features students have a head for.
        at_once: models that encode a batch at the same time. On a CPU small models gain more from that than from
            threads of their own.
        texts: for zero-shot classification.
        seed: of the warps for correspondence, and of the training images that judge a linear probe.
        processes: that encode and search in place of this one.
        reference: the model that all others, teachers aside, are compared with.
    """
    total = sum(math.ceil(len(i.rows) / i.batch_size) for i in (bank, queries))
    tick = _Ticker(progress, total)
    means = {(teacher, kind): TeacherMean() for teacher, wanted in kinds.items() for kind in wanted}
    # The student's own mean is needed where its resolutions are compared.
    centers = {s.resolution_of: TeacherMean() for s in models.values() if s.resolution_of is not None}
    others = [name for name, model in models.items() if model.heads is not None and name != reference]
    likeness = Likeness(reference, others) if reference is not None else None
    bank_rows = Rows(models)
    with ThreadPoolExecutor(at_once, "encode") as pool:
        encoded = processes.encode if processes else _encoder(pool)
        for batch, features in encoded(tick(bank.batches()), models):
            alive = torch.from_numpy(batch.weight > 0)
            _require_widths(models, kinds, features)
            bank_rows.add(batch, features)
            for (teacher, kind), mean in means.items():
                mean.update(_of(features[teacher], kind)[alive])
            for name, mean in centers.items():
                mean.update(_of(features[name], "spatial")[alive])
            if likeness:
                likeness.learn(features, alive)
        held_out = HeldOut(
            models,
            kinds,
            {key: mean.mean for key, mean in means.items()},
            {name: mean.mean for name, mean in centers.items()},
            config,
            images=len(queries.rows),
            zero_shot=texts.teacher if texts else None,
            seed=seed,
        )
        query_rows = Rows(models)
        for batch, features in encoded(tick(queries.batches()), models):
            query_rows.add(batch, features)
            held_out.see(batch, features)
            if likeness:
                likeness.see(features, torch.from_numpy(batch.weight > 0))
    found = Findings()
    held_out.tell(found)
    found.likeness = likeness.result() if likeness else {}
    if bank_rows.has_labels and query_rows.has_labels:
        _labelled(found, bank_rows, query_rows, models, config, seed, processes)
    else:
        split = "train" if query_rows.has_labels else "val"
        found.absent.append(f"kNN: no label in dataset.{split}_dataset; give an `id` or `label`, or folders as classes")
    if texts is not None:
        for name, rows in held_out.embeddings().items():
            found.zero_shot[name] = zero_shot_accuracy(rows, query_rows.label, texts.embeddings)
    usual = {name for name, model in models.items() if model.resolution_of is None}
    for name, shares in (("accuracy", query_rows.accuracy()), ("accuracy_top5", query_rows.accuracy(5))):
        setattr(found, name, {model: share for model, share in shares.items() if model in usual})
    return found


def _require_widths(
    models: dict[str, EvaluatedModel], kinds: dict[str, list[str]], features: dict[str, Features]
) -> None:
    """Heads must give what the teachers do: a file's are known by their names alone."""
    for model in models.values():
        for (teacher, kind), width in model.heads.head_widths.items() if model.heads else ():
            if kind in kinds.get(teacher, ()) and width != (given := _of(features[teacher], kind).shape[-1]):
                message = f"its {kind} head for {teacher} is {width} wide, and the teacher's {kind} {given}"
                raise RadioplatError(message, where=model.where, hint="It was made for another teacher of that name.")


def _labelled(
    found: Findings,
    bank: Rows,
    queries: Rows,
    models: dict[str, EvaluatedModel],
    config: EvaluateConfig,
    seed: int,
    processes: Processes | None,
) -> None:
    """kNN and the linear probe of every model."""
    for name, model in models.items():
        sides = (bank.summary(name), bank.label, queries.summary(name), queries.label)
        search = processes.search if processes else None
        found.knn[name] = knn_accuracy(*sides, k=config.knn_k, temperature=config.knn_temperature, search=search)
        if config.linear_probe.enable and model.resolution_of is None:
            found.linear[name] = linear_probe(*sides, config.linear_probe, seed)


class _Ticker:
    def __init__(self, progress: Callable[[int, int], None] | None, total: int) -> None:
        self._progress, self._total, self._done = progress, total, 0

    def __call__(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        for batch in batches:
            yield batch
            self._done += 1
            if self._progress:
                self._progress(self._done, self._total)


def _encoder(pool: Executor) -> Encoded:
    """Encode in this process, models side by side in the threads of ``pool``."""

    def encode(
        batches: Iterator[Batch], models: dict[str, EvaluatedModel]
    ) -> Iterator[tuple[Batch, dict[str, Features]]]:
        """Each batch with what every model says of it."""
        for batch in batches:
            views = {name: torch.from_numpy(view.pixels) for name, view in batch.views.items()}
            found = pool.map(lambda model: model.encode(views[str(model.size)]), models.values())  # noqa: B023
            yield batch, dict(zip(models, found, strict=True))

    return encode


def _of(features: Features, kind: str) -> torch.Tensor:
    value = features.summary if kind == "summary" else features.spatial
    assert value is not None
    return value
