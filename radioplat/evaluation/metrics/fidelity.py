"""Fidelity: similarity of a student's head to its teacher on held-out images.

Raw features share a large mean, so a student that always outputs this mean gets a high plain cosine. Therefore the
teacher's mean feature over TRAINING images is subtracted from both sides first:
``mean cos(student - mean, teacher - mean)``, which is 0 for a constant output. The plain cosine is computed too, and
linear CKA, which is invariant to rotation, scale and shift of the features.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from radioplat.common import collectives
from radioplat.common.ranks import Ranks
from radioplat.errors import RadioplatError
from radioplat.evaluation.metrics.cka import RowSample
from radioplat.evaluation.metrics.encoded_batch import EncodedBatch
from radioplat.evaluation.metrics.metric import Column, ModelRow, Setup, SharedMetric
from radioplat.losses.base.reduce import on_coarser_grid
from radioplat.spec.schema.evaluate import EvaluateConfig
from radioplat.tracking.table import Table

# A centred vector shorter than this share of the mean's length is fp32 rounding, and is treated as zero.
_ZERO = 1e-6


@dataclass(frozen=True)
class FidelityResult:
    """Result of a :class:`FidelityMeter`.

    Attributes:
        centered: mean cosine after subtracting the teacher's training mean, in [-1, 1]; the fidelity.
        plain: mean cosine of the raw vectors, in [-1, 1].
        count: vectors compared: images for a summary, positions of all images for a map.
        cka: debiased linear CKA over a sample of them, see ``radioplat.evaluation.metrics.cka``; None if it was not
            requested.
    """

    centered: float
    plain: float
    count: int
    cka: float | None = None


class TeacherMean:
    """Mean feature of a teacher over training images, accumulated in float64.

    For maps the mean is over images and positions alike: one vector ``[D]``.
    """

    def __init__(self) -> None:
        self.count = 0
        self._sum: Tensor | None = None

    def update(self, features: Tensor) -> None:
        """Add features ``[..., D]``."""
        rows = features.detach().flatten(0, -2).double()
        total = rows.sum(dim=0)
        self._sum = total if self._sum is None else self._sum + total
        self.count += len(rows)

    def share(self, ranks: Ranks) -> None:
        """Add the features of all ranks, which each rank then has."""
        sums, counts = zip(*ranks.objects((None if self._sum is None else self._sum.cpu(), self.count)), strict=True)
        if known := [each for each in sums if each is not None]:
            self._sum, self.count = torch.stack(known).sum(0).to(ranks.device), sum(counts)

    @property
    def mean(self) -> Tensor:
        """The mean, float64 ``[D]``.

        Raises:
            RadioplatError: nothing was added.
        """
        if self._sum is None or not self.count:
            raise RadioplatError("no training image to take the teacher's mean over", where="dataset.train_dataset")
        return self._sum / self.count


class FidelityMeter:
    """Accumulates :class:`FidelityResult` batch by batch.

    Args:
        mean: ``[D]``, the teacher's mean over training images (:class:`TeacherMean`).
        sample: keeps vectors for CKA; None for no CKA.
    """

    def __init__(self, mean: Tensor, sample: RowSample | None = None) -> None:
        self._sample = sample
        self._mean = mean.detach().double()
        self._centered = 0.0
        self._plain = 0.0
        self._count = 0

    def update(self, student: Tensor, teacher: Tensor) -> None:
        """Compare the student's head output with the teacher's features.

        Args:
            student: ``[N, D]`` or ``[N, H, W, D]`` in the teacher's raw space, any float dtype.
            teacher: the same shape.

        Raises:
            ValueError: shapes differ.
            RadioplatError: a feature is not finite.
        """
        if student.shape != teacher.shape or student.shape[-1] != len(self._mean):
            shapes = [list(each.shape) for each in (student, teacher, self._mean)]
            raise ValueError("student {}, teacher {} and mean {} do not fit".format(*shapes))
        ours, theirs = (each.detach().flatten(0, -2).double() for each in (student, teacher))
        for name, rows in (("student", ours), ("teacher", theirs)):
            if not rows.isfinite().all():
                raise RadioplatError(f"the {name}'s features are not finite")
        mean = self._mean.to(ours.device)
        floor = _ZERO * float(mean.norm())
        self._centered += float(_cosine(ours - mean, theirs - mean, floor).sum())
        self._plain += float(_cosine(ours, theirs, 0.0).sum())
        self._count += len(ours)
        if self._sample is not None:
            self._sample.add(student, teacher)

    def share(self, ranks: Ranks) -> None:
        """Add the sums of all ranks, which each rank then has; the sample for CKA stays this rank's."""
        sums = torch.tensor([self._centered, self._plain, self._count], dtype=torch.float64)
        self._centered, self._plain, count = ranks.total(sums).tolist()
        self._count = int(count)

    def result(self) -> FidelityResult:
        """Return the means so far.

        Raises:
            RadioplatError: nothing was compared.
        """
        if not self._count:
            raise RadioplatError("no held-out image to measure fidelity on", where="dataset.val_dataset")
        cka = None if self._sample is None else self._sample.cka()
        return FidelityResult(self._centered / self._count, self._plain / self._count, self._count, cka)


def _cosine(a: Tensor, b: Tensor, floor: float) -> Tensor:
    """Return the cosine of rows; 0 if one of them is not longer than ``floor``, since its direction is meaningless."""
    lengths = a.norm(dim=1), b.norm(dim=1)
    ok = (lengths[0] > floor) & (lengths[1] > floor)
    product = torch.where(ok, lengths[0] * lengths[1], 1.0)
    return torch.where(ok, (a * b).sum(dim=1) / product, 0.0).clamp(-1.0, 1.0)


class Fidelity(SharedMetric):
    """Metric ``fidelity``: a :class:`FidelityResult` by student, teacher and kind, and by the student's resolution."""

    name = row = objective = "fidelity"
    requires = "teachers"

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._means = {(teacher, kind): TeacherMean() for teacher, kinds in setup.kinds.items() for kind in kinds}
        self._meters: dict[tuple[str, str, str], FidelityMeter] = {}

    @classmethod
    def unused_options(cls, config: EvaluateConfig) -> Iterator[tuple[str, str]]:
        """Yield the options that the spec does not request; resolutions apply to a single checkpoint only."""
        if not (config.resolutions or config.models):
            yield "fidelity at several resolutions, and whether they agree", "resolutions"
        if not config.cka_rows:
            yield "linear CKA", "cka_rows"

    def learn(self, batch: EncodedBatch) -> None:
        """Add a batch of training images."""
        for (teacher, kind), mean in self._means.items():
            mean.update(batch.features[teacher].of(kind))

    def update(self, batch: EncodedBatch) -> None:
        """Add a batch of held-out images; maps are compared on the coarser of the two grids."""
        for name, teacher, kind in self._heads():
            ours, theirs = batch.head(name, teacher).of(kind), batch.features[teacher].of(kind)
            self._meter(name, teacher, kind).update(*on_coarser_grid(ours, theirs))

    def share_learned(self, ranks: Ranks) -> None:
        """Join the means of all ranks."""
        for mean in self._means.values():
            mean.share(ranks)

    def share(self, ranks: Ranks) -> None:
        """Join the sums of all ranks."""
        with collectives.mark_agreed():
            for key in self._heads():
                self._meter(*key).share(ranks)

    def result(self) -> dict[str, dict[str, dict[str, FidelityResult]]]:
        """Compute the result of each model.

        Raises:
            RadioplatError: there was no training image, or no held-out image.
        """
        results: dict[str, dict[str, dict[str, FidelityResult]]] = {}
        for name, teacher, kind in self._heads():
            results.setdefault(name, {}).setdefault(teacher, {})[kind] = self._meter(name, teacher, kind).result()
        return results

    @classmethod
    def tables(cls, result: dict[str, dict[str, dict[str, FidelityResult]]]) -> list[Table]:
        """Return the result as tables of the report."""
        return [_by_student(result), _by_resolution(result)]

    @classmethod
    def figures(cls, result: dict[str, dict[str, dict[str, FidelityResult]]]) -> dict[str, float]:
        """Return the figures for ``status.json``, by name."""
        return {
            f"fidelity/{name}/{head}": value for name in result for head, value in cls.of_model(result, name).items()
        }

    @classmethod
    def of_model(cls, result: dict[str, dict[str, dict[str, FidelityResult]]], model: str) -> dict[str, float]:
        """Return the figures of one model for its row, by ``<teacher>/<kind>``."""
        heads = result.get(model, {})
        return {
            f"{teacher}/{kind}": value.centered for teacher, kinds in heads.items() for kind, value in kinds.items()
        }

    @classmethod
    def columns(cls, rows: Sequence[ModelRow]) -> dict[str, Column]:
        """Return columns of the table of models side by side: one for each head."""
        heads = dict.fromkeys(name for row in rows for name in row.figures() if name.startswith("fidelity/"))
        return {head.partition("/")[2].replace("/", " "): Column(head) for head in heads}

    def _heads(self) -> Iterator[tuple[str, str, str]]:
        for name, model in self.setup.models.items():
            yield from ((name, teacher, kind) for teacher, kind in self._means if model.has_head(teacher, kind))

    def _meter(self, name: str, teacher: str, kind: str) -> FidelityMeter:
        if (name, teacher, kind) not in self._meters:
            rows, images = self.setup.spec.evaluate.cka_rows, self.setup.held_out_images
            sample = RowSample(rows, images) if rows else None
            self._meters[name, teacher, kind] = FidelityMeter(self._means[teacher, kind].mean, sample)
        return self._meters[name, teacher, kind]


def size_of(student: str) -> int | None:
    """Return 448 for ``student at 448``; None for a student at its usual size."""
    match = re.fullmatch(r"student at (\d+)", student)
    return int(match[1]) if match else None


def _by_student(result: dict[str, dict[str, dict[str, FidelityResult]]]) -> Table:
    """Return a table with a row for each teacher, kind and student; without a column of CKA that no row has."""
    students = [name for name in result if not size_of(name)]
    heads = dict.fromkeys((t, k) for name in students for t, kinds in result[name].items() for k in kinds)
    values = [(t, k, name, result[name].get(t, {}).get(k)) for t, k in heads for name in students]
    rows = [[t, k, name, value.centered, value.plain, value.cka] for t, k, name, value in values if value is not None]
    measured = 6 if any(row[-1] is not None for row in rows) else 5
    columns = ["teacher", "features", "model", "centered cosine", "plain cosine", "linear CKA"]
    return Table(
        columns[:measured],
        [row[:measured] for row in rows],
        title="Fidelity to each teacher on held-out images",
        note="Means over the images. Centered: without the teacher's training mean, so that a constant output scores "
        "0. CKA is debiased.",
    )


def _by_resolution(result: dict[str, dict[str, dict[str, FidelityResult]]]) -> Table:
    """Return a table of the trained student at each resolution; without rows if there is only one."""
    students = sorted((name for name in result if name == "student" or size_of(name)), key=lambda n: size_of(n) or 0)
    rows = []
    for teacher, kinds in result["student"].items() if len(students) > 1 else ():
        for kind in kinds:
            for name in students:
                value = result[name][teacher][kind]
                size = f"{size_of(name)} px" if size_of(name) else "usual"
                rows.append([teacher, kind, size, value.centered, value.plain, value.cka])
    return Table(
        ["teacher", "features", "student's input", "centered cosine", "plain cosine", "linear CKA"],
        rows,
        title="Fidelity at each resolution",
        note="The teacher keeps its own resolution; maps are compared on the coarser of the two grids.",
    )
