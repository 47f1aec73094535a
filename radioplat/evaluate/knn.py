"""Weighted k-nearest-neighbour accuracy of features: what they know about classes without any training.

Source: Wu et al. 2018, "Unsupervised Feature Learning via Non-Parametric Instance Discrimination", section 3.4;
the same protocol as DINO's eval_knn.py (k = 20, T = 0.07).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from radioplat.errors import RadioplatError

# Elements of the largest temporary (similarities, votes): 2**25 float32 are 128 MiB.
_TEMPORARY = 2**25


@dataclass(frozen=True)
class KnnResult:
    """Outcome of :func:`knn_accuracy`.

    Attributes:
        top1, top5: share of queries whose class has the most votes, is among the five with the most; in [0, 1].
        count: labelled queries.
        bank: labelled bank samples.
        k: neighbours that voted, at most ``bank``.
        classes: number of classes.
    """

    top1: float
    top5: float
    count: int
    bank: int
    k: int
    classes: int


@torch.no_grad()
def knn_accuracy(
    bank: Tensor,
    bank_labels: Tensor,
    queries: Tensor,
    query_labels: Tensor,
    *,
    k: int = 20,
    temperature: float = 0.07,
    classes: int | None = None,
) -> KnnResult:
    """Classify each query by its k nearest bank samples; a neighbour votes with exp(cos / temperature).

    Exact: every query is compared with the whole bank, in chunks of bounded memory, in fp32.

    Args:
        bank: ``[N, D]`` any float dtype; L2-normalised here.
        bank_labels: int ``[N]``; a negative label means none, and the sample is left out.
        queries: ``[M, D]`` on the same device.
        query_labels: int ``[M]``, negative likewise.
        k: neighbours; all of the bank if it is smaller.
        temperature: of the vote; must be positive.
        classes: number of classes; default the largest label plus one.

    Raises:
        RadioplatError: nothing labelled on one of the sides, a label not below ``classes``, features not finite.
        ValueError: shapes that do not fit, or ``k`` or ``temperature`` not positive.
    """
    if k < 1 or temperature <= 0:
        raise ValueError(f"k and temperature must be positive, not {k} and {temperature}")
    bank, bank_labels = _labelled(bank, bank_labels, "training")
    queries, query_labels = _labelled(queries, query_labels, "validation")
    if bank.shape[1] != queries.shape[1]:
        raise ValueError(f"bank features have {bank.shape[1]} dimensions, query features {queries.shape[1]}")
    highest = int(max(bank_labels.max(), query_labels.max()))
    classes = highest + 1 if classes is None else classes
    if highest >= classes:
        raise RadioplatError(f"a label is {highest} but there are {classes} classes", hint="Labels count from 0.")
    k = min(k, len(bank))
    correct1 = correct5 = 0
    chunk = max(1, _TEMPORARY // max(len(bank), classes))
    for part, labels in zip(queries.split(chunk), query_labels.split(chunk), strict=True):
        similarity, neighbour = (part @ bank.T).topk(k, dim=1)
        # The largest exponent is made 0, which scales a query's votes alike and cannot overflow at a small T.
        weight = ((similarity - similarity[:, :1]) / temperature).exp()
        votes = weight.new_zeros(len(part), classes).scatter_add_(1, bank_labels[neighbour], weight)
        hit = votes.topk(min(5, classes), dim=1).indices == labels[:, None]
        correct1 += int(hit[:, 0].sum())
        correct5 += int(hit.any(dim=1).sum())
    count = len(queries)
    return KnnResult(correct1 / count, correct5 / count, count, len(bank), k, classes)


def _labelled(features: Tensor, labels: Tensor, split: str) -> tuple[Tensor, Tensor]:
    if features.ndim != 2 or labels.shape != features.shape[:1]:
        raise ValueError(f"features [N, D] and labels [N] do not fit: {list(features.shape)}, {list(labels.shape)}")
    labels = labels.to(features.device, torch.int64)
    features, labels = features[labels >= 0], labels[labels >= 0]
    if not len(features):
        raise RadioplatError(
            f"no labelled sample in the {split} split",
            where="dataset",
            hint="kNN needs labels: a sidecar's `id` or `label`, a .cls member, or folders as classes.",
        )
    bad = int((~features.isfinite().all(dim=1)).sum())
    if bad:
        raise RadioplatError(f"features of {bad} of {len(features)} samples of the {split} split are not finite")
    return F.normalize(features.float(), dim=1), labels
