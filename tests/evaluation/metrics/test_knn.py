import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.neighbors import NearestNeighbors

from radioplat.errors import RadioplatError
from radioplat.evaluation.metrics import knn
from radioplat.evaluation.metrics.knn import knn_accuracy


def clusters(seed, n=60, m=40, d=8, classes=7, noise=1.0):
    """Bank and queries around random class centres; doubles, so that a reference has the same order of neighbours."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((classes, d))
    labels = [rng.integers(0, classes, size) for size in (n, m)]
    features = [centres[each] + noise * rng.standard_normal((len(each), d)) for each in labels]
    return [torch.from_numpy(part) for pair in zip(features, labels, strict=True) for part in pair]


def reference(bank, bank_labels, queries, query_labels, k, temperature, classes):
    """The same protocol by scikit-learn's search and a loop over votes."""
    search = NearestNeighbors(n_neighbors=k, metric="cosine", algorithm="brute").fit(bank.numpy())
    distance, index = search.kneighbors(queries.numpy())
    top1 = top5 = 0
    for row_distance, row_index, label in zip(distance, index, query_labels.tolist(), strict=True):
        votes = dict.fromkeys(range(classes), 0.0)
        for d, i in zip(row_distance, row_index, strict=True):
            votes[int(bank_labels[i])] += np.exp((1 - d) / temperature)
        ranked = sorted(votes, key=votes.get, reverse=True)
        top1 += ranked[0] == label
        # A class without a vote can be fifth only by the order of ties, which no protocol defines.
        top5 += label in ranked[:5]
    return top1 / len(queries), top5 / len(queries)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.05, 0.07, 1.0]))
def test_equals_a_reference_written_differently(seed, temperature):
    data = clusters(seed, n=200)
    result = knn_accuracy(*data, k=60, temperature=temperature)
    classes = result.classes
    top1, top5 = reference(*data, k=60, temperature=temperature, classes=classes)
    assert result.top1 == pytest.approx(top1)
    voted = 60 > 5 * classes  # enough neighbours that five classes nearly always have votes
    assert not voted or result.top5 == pytest.approx(top5, abs=1.001 / len(data[2]))
    assert (result.count, result.bank, result.k) == (40, 200, 60)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(1e-3, 1e3))
def test_scale_and_order_do_not_matter(seed, scale):
    bank, bank_labels, queries, query_labels = clusters(seed)
    expected = knn_accuracy(bank, bank_labels, queries, query_labels, k=5, classes=7)
    generator = torch.Generator().manual_seed(seed)
    b, q = torch.randperm(len(bank), generator=generator), torch.randperm(len(queries), generator=generator)
    rows = torch.rand(len(bank), 1, generator=generator).double() + 0.5
    actual = knn_accuracy(bank[b] * rows * scale, bank_labels[b], queries[q] / scale, query_labels[q], k=5, classes=7)
    assert actual == expected


def test_chunks_do_not_matter(monkeypatch):
    data = clusters(3)
    whole = knn_accuracy(*data)
    monkeypatch.setattr(knn, "_TEMPORARY", 60 * 7)
    assert knn_accuracy(*data) == whole


def test_separated_clusters_are_solved_and_shuffled_labels_are_not():
    bank, bank_labels, queries, query_labels = clusters(0, n=400, m=400, noise=0.05)
    assert knn_accuracy(bank, bank_labels, queries, query_labels).top1 == 1.0
    shuffled = bank_labels[torch.randperm(400, generator=torch.Generator().manual_seed(0))]
    assert knn_accuracy(bank, shuffled, queries, query_labels).top1 < 0.4


def test_near_neighbour_outvotes_two_far_ones():
    bank = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    data = bank, torch.tensor([1, 0, 0]), torch.tensor([[1.0, 0.1]]), torch.tensor([1])
    assert knn_accuracy(*data, k=3).top1 == 1.0
    assert knn_accuracy(*data, k=3, temperature=100).top1 == 0.0


def test_k_beyond_the_bank_and_fewer_than_five_classes():
    data = clusters(1, n=4, classes=3)
    result = knn_accuracy(*data, k=20, classes=3)
    assert result.k == 4 and result.top5 == 1.0


def test_tiny_temperature_does_not_overflow():
    bank, labels = torch.eye(3), torch.arange(3)
    assert knn_accuracy(bank, labels, bank, labels, k=3, temperature=1e-4).top1 == 1.0


def test_unlabelled_samples_are_left_out():
    bank, bank_labels, queries, query_labels = clusters(2)
    expected = knn_accuracy(bank, bank_labels, queries, query_labels)
    more = [torch.cat([bank, bank]), torch.cat([bank_labels, torch.full_like(bank_labels, -1)])]
    more += [torch.cat([queries, queries]), torch.cat([query_labels, torch.full_like(query_labels, -1)])]
    assert knn_accuracy(*more) == expected


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        (lambda d: d[1].fill_(-1), RadioplatError, "no labelled sample in the training split"),
        (lambda d: d[3].fill_(-1), RadioplatError, "no labelled sample in the validation split"),
        (lambda d: d[1].fill_(9), RadioplatError, "a label is 9 but there are 7 classes"),
        (lambda d: d[2][0].fill_(float("nan")), RadioplatError, "1 of 40 samples of the validation split are not"),
    ],
)
def test_what_cannot_be_judged_is_told(change, error, match):
    data = clusters(0)
    change(data)
    with pytest.raises(error, match=match):
        knn_accuracy(*data, classes=7)
