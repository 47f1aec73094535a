"""Weighted k-nearest-neighbour accuracy of features: how well they separate classes without training.

Source: Wu et al. 2018, "Unsupervised Feature Learning via Non-Parametric Instance Discrimination", section 3.4;
the same protocol as DINO's eval_knn.py (k = 20, T = 0.07).

The bank is searched in blocks, so that no temporary tensor exceeds memory, or in pieces by several processes. The k
nearest of all are among the k nearest of each piece, so merging is exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from radioplat.errors import RadioplatError
from radioplat.evaluation.metrics.metric import Metric, percentage
from radioplat.tracking.table import Table

# Elements of the largest temporary (similarities, votes): 2**25 float32 are 128 MiB.
_TEMPORARY = 2**25


@dataclass(frozen=True)
class KnnResult:
    """Result of :func:`knn_accuracy`.

    Attributes:
        top1, top5: shares of queries whose class has the most votes, or is among the five with the most; in [0, 1].
        count: number of labelled queries.
        bank: number of labelled bank samples.
        k: number of neighbours that voted, at most ``bank``.
        classes: number of classes.
    """

    top1: float
    top5: float
    count: int
    bank: int
    k: int
    classes: int


@dataclass(frozen=True)
class Nearest:
    """The nearest bank samples of each query, nearest first.

    Of equally near samples the first of the bank comes first, if pieces are merged in the order of the bank.

    Attributes:
        similarity: cosine, fp32 ``[M, k]``.
        row: row in the complete bank, int64 ``[M, k]``.
        label: int64 ``[M, k]``.
    """

    similarity: Tensor
    row: Tensor
    label: Tensor

    def merged(self, other: Nearest, k: int) -> Nearest:
        """Return the ``k`` nearest of both."""
        both = [torch.cat(pair, dim=1) for pair in zip(self, other, strict=True)]
        column = _nearest_columns(both[0], k)
        return Nearest(*(each.gather(1, column) for each in both))

    def __iter__(self):
        return iter((self.similarity, self.row, self.label))


def nearest(bank: Tensor, labels: Tensor, queries: Tensor, k: int, first_row: int = 0, block: int = 2**15) -> Nearest:
    """Return the ``k`` nearest rows of a bank ``[N, D]`` for queries ``[M, D]``, both of unit length.

    Args:
        first_row: row of ``bank[0]`` in the complete bank.
        block: number of rows that are compared at a time.
    """
    merged: Nearest | None = None
    for start in range(0, len(bank), block):
        similarity = queries @ bank[start : start + block].T
        column = _nearest_columns(similarity, k)
        row = column + start
        part = Nearest(similarity.gather(1, column), row + first_row, labels[row])
        merged = part if merged is None else merged.merged(part, k)
    if merged is None:
        empty = queries.new_zeros(len(queries), 0)
        return Nearest(empty, empty.long(), empty.long())
    return merged


def _nearest_columns(similarity: Tensor, k: int) -> Tensor:
    """Return columns by descending similarity, int64 ``[M, k]``; of equal ones the first."""
    if similarity.shape[1] <= 4 * k:
        return similarity.argsort(dim=1, descending=True, stable=True)[:, :k]
    # topk may choose any of equally near samples. So all samples at least as near as the k-th are selected and sorted
    # if they are few, which is nearly always so; otherwise all samples are sorted.
    kth = similarity.topk(k, dim=1).values[:, -1:]
    most = int((similarity >= kth).sum(dim=1).max())
    if most > 4 * k:
        return similarity.argsort(dim=1, descending=True, stable=True)[:, :k]
    few = torch.where(similarity >= kth, similarity, -torch.inf).topk(most, dim=1).indices.sort(dim=1).values
    order = similarity.gather(1, few).argsort(dim=1, descending=True, stable=True)[:, :k]
    return few.gather(1, order)


@torch.no_grad()
def knn_answers(
    bank: Tensor,
    bank_labels: Tensor,
    queries: Tensor,
    query_labels: Tensor,
    *,
    k: int = 20,
    temperature: float = 0.07,
    classes: int | None = None,
    search: Callable[[Tensor, Tensor], Callable[[Tensor, int], Nearest]] | None = None,
) -> tuple[KnnResult, Tensor]:
    """Classify each query by its k nearest bank samples; a neighbour votes with exp(cos / temperature).

    Exact: every query is compared with the complete bank, in chunks of bounded memory, in fp32.

    Args:
        bank: ``[N, D]`` any float dtype; L2-normalised here.
        bank_labels: int ``[N]``; samples with a negative label have none and are left out.
        queries: ``[M, D]`` on the same device.
        query_labels: int ``[M]``, as ``bank_labels``.
        k: number of neighbours; all of the bank if it is smaller.
        temperature: of the vote; must be positive.
        classes: number of classes; default the largest label plus one.
        search: called with the bank and its labels; returns a function of queries and k that replaces :func:`nearest`.

    Returns:
        The accuracy, and whether the class of each labelled query is right, bool ``[M]`` on the CPU.

    Raises:
        RadioplatError: one of the sides has no label, a label is not below ``classes``, or features are not finite.
    """
    bank, bank_labels, bad = labelled_rows(bank, bank_labels)
    require_rows(len(bank), bad, "training")
    queries, query_labels, bad = labelled_rows(queries, query_labels)
    require_rows(len(queries), bad, "validation")
    classes = class_count(bank_labels, query_labels, classes)
    k = min(k, len(bank))
    firsts, correct5 = [], 0
    block, group = block_sizes(len(bank), k, classes)

    def here(part: Tensor, k: int) -> Nearest:
        """Search in this process."""
        return nearest(bank, bank_labels, part, k, block=block)

    find = search(bank, bank_labels) if search else here
    for part, labels in zip(queries.split(group), query_labels.split(group), strict=True):
        first, five = right_answers(find(part, k), labels, classes, temperature)
        firsts.append(first.cpu())
        correct5 += int(five.sum())
    right, count = torch.cat(firsts), len(queries)
    return KnnResult(int(right.sum()) / count, correct5 / count, count, len(bank), k, classes), right


def knn_accuracy(bank: Tensor, bank_labels: Tensor, queries: Tensor, query_labels: Tensor, **options: Any) -> KnnResult:
    """Return the accuracy alone; see :func:`knn_answers`."""
    return knn_answers(bank, bank_labels, queries, query_labels, **options)[0]


def block_sizes(bank: int, k: int, classes: int) -> tuple[int, int]:
    """Return the rows of a bank, and the queries, that are compared at a time, by the bank's number of rows."""
    block = max(k, min(bank, 2**15))
    return block, max(1, _TEMPORARY // max(block, classes))


def count_right(neighbours: Nearest, labels: Tensor, classes: int, temperature: float) -> tuple[int, int]:
    """Return the numbers of :func:`right_answers`."""
    first, five = right_answers(neighbours, labels, classes, temperature)
    return int(first.sum()), int(five.sum())


def right_answers(neighbours: Nearest, labels: Tensor, classes: int, temperature: float) -> tuple[Tensor, Tensor]:
    """Let the neighbours of queries vote; return whether each query's class, int64 ``[M]``, is first, and among the
    first five."""
    # Subtract the largest exponent: this scales all votes of a query equally and prevents overflow at a small T.
    weight = ((neighbours.similarity - neighbours.similarity[:, :1]) / temperature).exp()
    votes = weight.new_zeros(len(labels), classes).scatter_add_(1, neighbours.label, weight)
    hit = votes.topk(min(5, classes), dim=1).indices == labels[:, None]
    return hit[:, 0], hit.any(dim=1)


def class_count(bank_labels: Tensor, query_labels: Tensor, classes: int | None) -> int:
    """Return ``classes``, or the largest label plus one.

    Raises:
        RadioplatError: a label is not below ``classes``.
    """
    highest = max(int(bank_labels.max()), int(query_labels.max()))
    classes = highest + 1 if classes is None else classes
    if highest >= classes:
        raise RadioplatError(f"a label is {highest} but there are {classes} classes", hint="Labels count from 0.")
    return classes


def labelled_rows(features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, int]:
    """Return the labelled rows scaled to unit length, their labels, and the number of rows that are not finite."""
    labels = labels.to(features.device, torch.int64)
    features, labels = features[labels >= 0], labels[labels >= 0]
    bad = int((~features.isfinite().all(dim=1)).sum())
    return F.normalize(features.float(), dim=1), labels, bad


def require_rows(count: int, bad: int, split: str) -> None:
    """Check that a split has labelled rows, and that all are finite.

    Raises:
        RadioplatError: it has none, or ``bad`` of them are not finite.
    """
    if not count:
        raise RadioplatError(
            f"no labelled sample in the {split} split",
            where="dataset",
            hint="kNN needs labels: a sidecar's `id` or `label`, a .cls member, or folders as classes.",
        )
    if bad:
        raise RadioplatError(f"features of {bad} of {count} samples of the {split} split are not finite")


class Knn(Metric):
    """Metric ``knn``: a :class:`KnnResult` for each model, and the student at each resolution; none without labels."""

    name = figure = row = objective = "knn"
    score = "top1"
    column = "kNN, %"
    requires = "labels in both splits"

    def result(self) -> dict[str, KnnResult]:
        """Compute the result of each model."""
        bank, queries, config = self.setup.training, self.setup.held_out, self.setup.spec.evaluate
        if not (bank.labelled and queries.labelled):
            self.note_unlabelled("train" if queries.labelled else "val")
            return {}
        options = {"k": config.knn_k, "temperature": config.knn_temperature, "search": self.setup.search}
        results = {}
        for name in self.setup.models:
            answers = knn_answers(bank.of(name), bank.labels, queries.of(name), queries.labels, **options)
            results[name], self.setup.right[name] = answers
        return results

    def note_unlabelled(self, split: str) -> None:
        """Note that ``split``, ``train`` or ``val``, has no label."""
        hint = "give an `id` or `label`, or folders as classes"
        self.notes.append(f"kNN: no label in dataset.{split}_dataset; {hint}")

    @classmethod
    def tables(cls, result: dict[str, KnnResult]) -> list[Table]:
        """Return the result as tables of the report."""
        rows = [[name, percentage(r.top1), percentage(r.top5)] for name, r in result.items()]
        notes = [f"{r.count} held-out images, {r.bank} labelled training images, k = {r.k}." for r in result.values()]
        return [Table(["model", "top-1", "top-5"], rows, title="kNN on held-out images", note="".join(notes[:1]))]
