"""kNN accuracy of features that several ranks hold, equal to that of one process.

Each rank searches for its share of the queries. The bank passes by in blocks, so that no device ever has all of it.
Blocks and groups of queries are those of one process: then the products have the same shapes, and are equal to the bit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

from radioplat.common import collectives
from radioplat.common.ranks import Ranks
from radioplat.evaluation.metrics.encoded_batch import Summaries
from radioplat.evaluation.metrics.knn import (
    Knn,
    KnnResult,
    Nearest,
    block_sizes,
    class_count,
    count_right,
    labelled_rows,
    nearest,
    require_rows,
)
from radioplat.evaluation.metrics.metric import Setup, SharedMetric
from radioplat.evaluation.metrics.shared_rows import SharedRows


class SharedKnn(Knn, SharedMetric):
    """Metric ``knn`` of the students that the ranks measure together; teachers have none."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._results: dict[str, KnnResult] = {}

    def share(self, ranks: Ranks) -> None:
        """Compute the result of each student; none without labels in both splits."""
        bank, queries, config = self.setup.training, self.setup.held_out, self.setup.spec.evaluate
        labelled = [any(of_ranks) for of_ranks in zip(*ranks.objects((bank.labelled, queries.labelled)), strict=True)]
        if not all(labelled):
            self.note_unlabelled("train" if labelled[1] else "val")
            return
        options = {"k": config.knn_k, "temperature": config.knn_temperature}
        for name in (name for name, model in self.setup.models.items() if model.heads is not None):
            self._results[name] = shared_knn_accuracy(ranks, _of(bank, name), _of(queries, name), **options)

    def result(self) -> dict[str, KnnResult]:
        """Return the result of each student."""
        return self._results


@torch.no_grad()
def shared_knn_accuracy(
    ranks: Ranks,
    bank: tuple[Tensor, Tensor, Tensor],
    queries: tuple[Tensor, Tensor, Tensor],
    *,
    k: int = 20,
    temperature: float = 0.07,
) -> KnnResult:
    """Classify the queries of all ranks by their nearest samples in the bank of all ranks; every rank must call it.

    Args:
        bank, queries: this rank's features, ``[n, D]`` of any float dtype on the CPU, labels, int64 ``[n]``, negative
            for none, and ids, see :class:`SharedRows`.
        k, temperature: as of :func:`knn_accuracy`.

    Returns:
        The result, the same on every rank.

    Raises:
        RadioplatError: on every rank, as :func:`knn_accuracy`.
    """
    with collectives.mark_agreed():
        bank_rows, bank_labels = _gathered(ranks, *bank, "training")
        query_rows, query_labels = _gathered(ranks, *queries, "validation")
        classes = class_count(bank_labels, query_labels, None)
    k = min(k, len(bank_rows))
    block, group = block_sizes(len(bank_rows), k, classes)
    own = [
        (part, labels)
        for i, (part, labels) in enumerate(zip(query_rows.blocks(group), query_labels.split(group), strict=True))
        if i % ranks.count == ranks.rank
    ]
    best: list[Nearest | None] = [None] * len(own)
    with _exact_products():
        for number, rows in enumerate(bank_rows.blocks(block)):
            start = number * block
            labels = bank_labels[start : start + block]
            for i, (part, _) in enumerate(own):
                here, before = nearest(rows, labels, part, k, first_row=start, block=block), best[i]
                best[i] = here if before is None else before.merged(here, k)
    right = torch.zeros(2, dtype=torch.int64)
    for neighbours, (_, labels) in zip(best, own, strict=True):
        assert neighbours is not None
        right += torch.tensor(count_right(neighbours, labels, classes, temperature))
    first, five = ranks.total(right).tolist()
    count = len(query_rows)
    return KnnResult(first / count, five / count, count, len(bank_rows), k, classes)


def _of(summaries: Summaries, model: str) -> tuple[Tensor, Tensor, Tensor]:
    return summaries.of(model), summaries.labels, summaries.ids


def _gathered(ranks: Ranks, features: Tensor, labels: Tensor, ids: Tensor, split: str) -> tuple[SharedRows, Tensor]:
    """Return the rows of all ranks that have a label, of unit length, and their labels, on the device."""
    ids = ids[labels >= 0]
    rows, labels, bad = labelled_rows(features, labels)
    labels = SharedRows(ranks, labels, ids).gathered()
    require_rows(len(labels), int(ranks.total(torch.tensor(bad))), split)
    return SharedRows(ranks, rows, ids), labels


@contextlib.contextmanager
def _exact_products() -> Iterator[None]:
    """Multiply fp32 as fp32: TF32, which a run may have chosen, would confuse near neighbours."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
