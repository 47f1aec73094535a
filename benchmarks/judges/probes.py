"""kNN, linear and dense probes of frozen embeddings. Numpy alone; everything is deterministic.

A probe returns :class:`Hits`: for each query image and class, how many of its answers were right and how many it gave.
A figure is the mean over classes of right by given; for kNN and linear probe all queries are one class, so that theirs
is the plain share of right answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.judges.embeddings import IGNORED, Task

NEIGHBOURS, TEMPERATURE = 20, 0.07
# Ridge's strengths, relative to the mean eigenvalue of the features' covariance.
STRENGTHS = tuple(10.0**power for power in range(-5, 4))
HELD_BACK = 5  # every fifth of each label in the bank picks the strength
MOST_POSITIONS = 40_000  # of the bank that a dense probe is fitted on


@dataclass(frozen=True)
class Hits:
    """Answers by query and class.

    Attributes:
        right, given: float64 ``[N, C]``.
        chance: the figure of an answer that ignores the image.
    """

    right: np.ndarray
    given: np.ndarray
    chance: float

    @property
    def figure(self) -> float:
        """Mean over classes of the share of right answers; between 0 and 1."""
        return mean_share(self.right.sum(0), self.given.sum(0))


def mean_share(right: np.ndarray, given: np.ndarray) -> float:
    """Mean of ``right / given`` ``[C]`` over the classes that occur."""
    occurs = given > 0
    return float((right[occurs] / given[occurs]).mean())


def probes(task: Task) -> Iterator[tuple[str, Hits]]:
    """Yield the figures' names and answers: ``<task>.knn`` and ``<task>.linear``, or ``<task>.dense``."""
    if task.dense:
        yield f"{task.name}.dense", dense(task)
        return
    for name, labels in (("knn", knn(task)), ("linear", linear(task))):
        right = (labels == task.queries_labels).astype(np.float64)[:, None]
        # The share of the commonest label among the queries.
        chance = float(np.bincount(task.queries_labels).max() / len(task.queries_labels))
        yield f"{task.name}.{name}", Hits(right, np.ones_like(right), chance)


def knn(task: Task, neighbours: int = NEIGHBOURS, temperature: float = TEMPERATURE) -> np.ndarray:
    """Return a label for each query: the ``k`` bank embeddings of the largest cosine vote for theirs, each with weight
    ``exp(cosine / temperature)``.

    As Wu et al. 2018 (Unsupervised Feature Learning via Non-Parametric Instance Discrimination, section 3.4) and Caron
    et al. 2021 (DINO, ``eval_knn.py``: k = 20, temperature 0.07).
    """
    bank, queries = _unit(task.bank), _unit(task.queries)
    k = min(neighbours, len(bank))
    labels = np.empty(len(queries), np.int64)
    for start in range(0, len(queries), 512):  # a block of cosines at a time
        cosine = queries[start : start + 512] @ bank.T
        nearest = np.argpartition(-cosine, k - 1, axis=1)[:, :k]
        weight = np.exp(np.take_along_axis(cosine, nearest, 1) / temperature)
        votes = np.zeros((len(cosine), task.classes))
        np.add.at(votes, (np.arange(len(cosine))[:, None], task.bank_labels[nearest]), weight)
        labels[start : start + len(cosine)] = votes.argmax(1)
    return labels


def linear(task: Task) -> np.ndarray:
    """Return a label for each query by ridge regression on one-hot labels of the bank (regularised least-squares
    classification, Rifkin et al. 2003), features standardised, strength picked on a fifth of the bank."""
    bank, queries = task.bank.astype(np.float64), task.queries.astype(np.float64)
    held_back = _every_fifth(task.bank_labels)
    return _ridge(bank, task.bank_labels, held_back, task.classes, balanced=False)(queries)


def dense(task: Task) -> Hits:
    """Answer each position of the queries' maps by ridge regression on positions of the bank's maps.

    Classes weigh the same, however many positions they have: in the fit and in the figure. The strength is picked on
    every fifth image of the bank.
    """
    images = np.broadcast_to(np.arange(len(task.bank))[:, None, None], task.bank_labels.shape)
    counts = task.bank_labels != IGNORED
    x, y, image = task.bank[counts], task.bank_labels[counts], images[counts]
    if len(y) > MOST_POSITIONS:
        chosen = np.sort(np.random.default_rng(0).choice(len(y), MOST_POSITIONS, replace=False))
        x, y, image = x[chosen], y[chosen], image[chosen]
    answer = _ridge(x.astype(np.float64), y, image % HELD_BACK == 0, task.classes, balanced=True)
    size = (len(task.queries), task.classes)
    right, given = np.zeros(size), np.zeros(size)
    for number, (maps, labels) in enumerate(zip(task.queries, task.queries_labels, strict=True)):
        own = labels != IGNORED
        if own.any():
            found = answer(maps[own].astype(np.float64))
            given[number] = np.bincount(labels[own], minlength=task.classes)
            right[number] = np.bincount(labels[own][found == labels[own]], minlength=task.classes)
    return Hits(right, given, 1 / int((given.sum(0) > 0).sum()))


def _unit(features: np.ndarray) -> np.ndarray:
    features = features.astype(np.float64)
    return features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)


def _every_fifth(labels: np.ndarray) -> np.ndarray:
    """Bool ``[N]``: every fifth sample of each label, counted in the order of the file."""
    chosen = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        chosen[np.flatnonzero(labels == label)[HELD_BACK - 1 :: HELD_BACK]] = True
    return chosen


def _ridge(x: np.ndarray, y: np.ndarray, held_back: np.ndarray, classes: int, balanced: bool):
    """Fit and return a function from features ``[N, D]`` to labels."""
    mean, spread = x.mean(0), x.std(0)
    x = (x - mean) / np.maximum(spread, 1e-6 * max(float(spread.max()), 1e-12))
    strength = STRENGTHS[len(STRENGTHS) // 2]
    if held_back.any() and not held_back.all():
        best = -1.0
        rest, labels = x[held_back], y[held_back]
        weight = _weights(labels, classes, balanced)
        for each, solution in _solutions(x[~held_back], y[~held_back], classes, balanced, STRENGTHS):
            share = float(weight[_answers(rest, solution) == labels].sum() / weight.sum())
            if share >= best:  # of equals the strongest, which is the last
                best, strength = share, each
    ((_, solution),) = _solutions(x, y, classes, balanced, (strength,))
    scale = np.maximum(spread, 1e-6 * max(float(spread.max()), 1e-12))
    return lambda features: _answers((features - mean) / scale, solution)


def _answers(x: np.ndarray, solution: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    return (x @ solution[0] + solution[1]).argmax(1)


def _weights(y: np.ndarray, classes: int, balanced: bool) -> np.ndarray:
    """Weights ``[N]`` with mean 1; balanced: each class has the same sum."""
    if not balanced:
        return np.ones(len(y))
    counts = np.bincount(y, minlength=classes)
    return len(y) / (np.count_nonzero(counts) * counts[y])


def _solutions(
    x: np.ndarray, y: np.ndarray, classes: int, balanced: bool, strengths: tuple[float, ...]
) -> Iterator[tuple[float, tuple[np.ndarray, np.ndarray]]]:
    """Yield each strength with matrix ``[D, C]`` and offset ``[C]`` of weighted ridge regression on one-hot labels.

    One eigendecomposition serves all strengths: of the covariance ``[D, D]``, or of the inner products ``[N, N]`` if
    there are fewer samples than features.
    """
    weight = _weights(y, classes, balanced)
    centre_x = (weight[:, None] * x).sum(0) / weight.sum()
    targets = np.eye(classes)[y]
    centre_y = (weight[:, None] * targets).sum(0) / weight.sum()
    root = np.sqrt(weight)[:, None]
    x, targets = (x - centre_x) * root, (targets - centre_y) * root
    wide = x.shape[1] > len(x)
    values, vectors = np.linalg.eigh(x @ x.T if wide else x.T @ x)
    values = np.maximum(values, 0)
    projected = vectors.T @ (targets if wide else x.T @ targets)
    unit = max(float(values.sum()) / x.shape[1], 1e-12)
    for strength in strengths:
        found = vectors @ (projected / (values + strength * unit)[:, None])
        matrix = x.T @ found if wide else found
        yield strength, (matrix, centre_y - centre_x @ matrix)
