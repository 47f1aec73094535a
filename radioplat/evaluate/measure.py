"""One pass over the bank and one over the queries, every model on the same decoded images."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import torch

from radioplat.data.batch import Batch
from radioplat.evaluate.encoder import Encoder
from radioplat.evaluate.fidelity import FidelityMeter, FidelityResult, TeacherMean
from radioplat.evaluate.images import Images
from radioplat.evaluate.knn import KnnResult, knn_accuracy
from radioplat.losses.reduce import to_grid
from radioplat.models.features import Features
from radioplat.models.student import Student
from radioplat.spec.tasks import EvaluateConfig


@dataclass(frozen=True)
class Subject:
    """A model under measurement.

    Attributes:
        size: side of the view it sees, in pixels.
        student: its heads are compared with the teachers; None for a teacher.
    """

    encode: Encoder
    size: int
    student: Student | None


@dataclass
class Findings:
    """What was measured.

    Attributes:
        shown: images of the pictures, uint8 ``[N, 3, H, W]``.
        maps: spatial features of the shown images, ``[N, h, w, D]``, by model; a student's in a teacher's space is
            ``<student>/<teacher>``.
    """

    knn: dict[str, KnnResult] = field(default_factory=dict)
    fidelity: dict[str, dict[str, dict[str, FidelityResult]]] = field(default_factory=dict)
    accuracy: float | None = None
    shown: np.ndarray | None = None
    maps: dict[str, torch.Tensor] = field(default_factory=dict)


def measure(
    subjects: dict[str, Subject],
    kinds: dict[str, list[str]],
    bank: Images,
    queries: Images,
    config: EvaluateConfig,
    progress: Callable[[int, int], None] | None = None,
    at_once: int = 1,
) -> Findings:
    """kNN of every subject, and the fidelity of every student to every teacher.

    Args:
        kinds: teacher -> which of its features students have a head for.
        at_once: subjects that encode a batch at the same time. On a CPU small models gain more from that than from
            threads of their own.
    """
    total = sum(math.ceil(len(i.rows) / i.batch_size) for i in (bank, queries))
    tick = _Ticker(progress, total)
    means = {(teacher, kind): TeacherMean() for teacher, wanted in kinds.items() for kind in wanted}
    bank_rows = _Rows(subjects)
    with ThreadPoolExecutor(at_once, "encode") as pool:
        for batch in tick(bank.batches()):
            features = _encode(batch, subjects, pool)
            bank_rows.add(batch, features)
            for (teacher, kind), mean in means.items():
                mean.update(_of(features[teacher], kind)[torch.from_numpy(batch.weight > 0)])
        query_rows, meters, findings = _Rows(subjects), _meters(subjects, means), Findings()
        for batch in tick(queries.batches()):
            features = _encode(batch, subjects, pool)
            query_rows.add(batch, features)
            _compare(batch, subjects, features, meters)
            if findings.shown is None and config.pictures:
                _keep_for_pictures(findings, batch, subjects, kinds, features, config.pictures)
    for (student, teacher, kind), meter in meters.items():
        findings.fidelity.setdefault(student, {}).setdefault(teacher, {})[kind] = meter.result()
    if bank_rows.has_labels and query_rows.has_labels:
        for name in subjects:
            findings.knn[name] = knn_accuracy(
                bank_rows.summary(name),
                bank_rows.label,
                query_rows.summary(name),
                query_rows.label,
                k=config.knn_k,
                temperature=config.knn_temperature,
            )
    findings.accuracy = query_rows.accuracy()
    return findings


class _Rows:
    """Summaries, labels and classifier answers gathered over batches."""

    def __init__(self, subjects: dict[str, Subject]) -> None:
        self._summaries: dict[str, list[torch.Tensor]] = {name: [] for name in subjects}
        self._labels: list[torch.Tensor] = []
        self._right: list[torch.Tensor] = []

    def add(self, batch: Batch, features: dict[str, Features]) -> None:
        """Keep what subjects said of a batch, samples that could not be read aside."""
        alive = torch.from_numpy(batch.weight > 0)
        label = torch.tensor(batch.label)[alive]
        self._labels.append(label)
        for name, value in features.items():
            self._summaries[name].append(value.summary[alive].cpu())
            if name == "student" and "logits" in value.named:
                guess = value.named["logits"].argmax(-1).cpu()[alive]
                self._right.append((guess == label)[label >= 0].float())

    @property
    def label(self) -> torch.Tensor:
        """int64 ``[n]`` of all rows so far, -1 where there is none."""
        return torch.cat(self._labels) if self._labels else torch.zeros(0, dtype=torch.long)

    @property
    def has_labels(self) -> bool:
        """Whether any row has one."""
        return bool((self.label >= 0).any())

    def summary(self, name: str) -> torch.Tensor:
        """``[n, D]`` of a subject."""
        return torch.cat(self._summaries[name])

    def accuracy(self) -> float | None:
        """Share of labelled rows that the student's own classifier has right; None where it has none."""
        answers = torch.cat(self._right) if self._right else torch.zeros(0)
        return float(answers.mean()) if len(answers) else None


class _Ticker:
    def __init__(self, progress: Callable[[int, int], None] | None, total: int) -> None:
        self._progress, self._total, self._done = progress, total, 0

    def __call__(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        for batch in batches:
            yield batch
            self._done += 1
            if self._progress:
                self._progress(self._done, self._total)


def _encode(batch: Batch, subjects: dict[str, Subject], pool: Executor) -> dict[str, Features]:
    views = {name: torch.from_numpy(view.pixels) for name, view in batch.views.items()}
    found = pool.map(lambda subject: subject.encode(views[str(subject.size)]), subjects.values())
    return dict(zip(subjects, found, strict=True))


def _of(features: Features, kind: str) -> torch.Tensor:
    value = features.summary if kind == "summary" else features.spatial
    assert value is not None
    return value


def _meters(
    subjects: dict[str, Subject], means: dict[tuple[str, str], TeacherMean]
) -> dict[tuple[str, str, str], FidelityMeter]:
    students = [name for name, subject in subjects.items() if subject.student is not None]
    return {(s, teacher, kind): FidelityMeter(mean.mean) for s in students for (teacher, kind), mean in means.items()}


@torch.inference_mode()
def _compare(
    batch: Batch,
    subjects: dict[str, Subject],
    features: dict[str, Features],
    meters: dict[tuple[str, str, str], FidelityMeter],
) -> None:
    alive = torch.from_numpy(batch.weight > 0)
    for (name, teacher, kind), meter in meters.items():
        ours, theirs = _pair(subjects[name], features[name], features[teacher], teacher, kind)
        meter.update(ours[alive], theirs[alive])


def _pair(
    subject: Subject, mine: Features, theirs: Features, teacher: str, kind: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """A student's head and its teacher, maps on the coarser of the two grids."""
    assert subject.student is not None
    ours, raw = _of(subject.student.head(teacher, mine), kind), _of(theirs, kind)
    if kind == "summary":
        return ours, raw
    grid = (min(ours.shape[1], raw.shape[1]), min(ours.shape[2], raw.shape[2]))
    return to_grid(ours, grid), to_grid(raw, grid)


@torch.inference_mode()
def _keep_for_pictures(
    findings: Findings,
    batch: Batch,
    subjects: dict[str, Subject],
    kinds: dict[str, list[str]],
    features: dict[str, Features],
    count: int,
) -> None:
    rows = np.unique(batch.label, return_index=True)[1] if (batch.label >= 0).all() else np.arange(len(batch))
    chosen = np.sort([*rows, *[i for i in range(len(batch)) if i not in set(rows)]][:count])
    largest = max(batch.views.values(), key=lambda view: view.pixels.shape[-1])
    findings.shown = largest.pixels[chosen].copy()
    for name, subject in subjects.items():
        findings.maps[name] = _of(features[name], "spatial")[chosen].float().cpu()
        if subject.student is None:
            continue
        for teacher, wanted in kinds.items():
            if "spatial" in wanted:
                head = subject.student.head(teacher, features[name])
                findings.maps[f"{name}/{teacher}"] = _of(head, "spatial")[chosen].float().cpu()
