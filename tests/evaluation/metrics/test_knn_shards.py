"""A bank in pieces gives the answers of a bank in one."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from radioplat.evaluation.metrics.knn import Nearest, knn_accuracy, nearest


def digits():
    """Real images whose features are their pixels: 1797 of ten classes, many of them alike."""
    data = load_digits()
    features, labels = torch.from_numpy(data.data).float(), torch.from_numpy(data.target)
    return features[:1500], labels[:1500], features[1500:], labels[1500:]


def brute_force(bank, labels, queries, k, temperature, classes):
    """Every distance, sorted; votes added one by one."""
    similarity = F.normalize(queries.double(), dim=1) @ F.normalize(bank.double(), dim=1).T
    guesses = []
    for row in similarity:
        votes = torch.zeros(classes, dtype=torch.float64)
        for i in sorted(range(len(bank)), key=lambda i: -float(row[i]))[:k]:
            votes[labels[i]] += torch.exp(row[i] / temperature)
        guesses.append(int(votes.argmax()))
    return torch.tensor(guesses)


def test_real_images_as_brute_force():
    bank, labels, queries, query_labels = digits()
    found = knn_accuracy(bank, labels, queries, query_labels, k=20, temperature=0.07)
    right = (brute_force(bank, labels, queries, 20, 0.07, 10) == query_labels).double().mean()
    assert found.top1 == pytest.approx(float(right)) and found.top1 > 0.9


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31 - 1), st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(1, 12))
def test_pieces_merge_to_the_whole_ties_and_all(seed, sizes, k):
    total = sum(sizes)
    generator = torch.Generator().manual_seed(seed)
    # Small whole numbers, whose products are exact whatever the shape of the arithmetic, and often equal.
    bank, queries = (torch.randint(-2, 3, (n, 3), generator=generator).float() for n in (total, 4))
    labels = torch.randint(0, 3, (total,), generator=generator)
    whole = nearest(bank, labels, queries, k)
    merged, start = None, 0
    for part, part_labels in zip(bank.split(sizes), labels.split(sizes), strict=True):
        found = nearest(part, part_labels, queries, k, first_row=start)
        merged, start = found if merged is None else merged.merged(found, k), start + len(part)
    assert all(torch.equal(one, other) for one, other in zip(merged, whole, strict=True))
    similarity = queries @ bank.T
    for query in range(4):
        order = sorted(range(total), key=lambda row: (-float(similarity[query, row]), row))[:k]
        assert whole.row[query].tolist() == order
    assert torch.equal(labels[whole.row], whole.label)


@pytest.mark.parametrize("block", [7, 64, 1499])
def test_block_size_does_not_matter(block):
    bank, labels, queries, _ = digits()  # pixels count from 0 to 16: their products are exact, and often equal
    one, many = nearest(bank, labels, queries, 20), nearest(bank, labels, queries, 20, block=block)
    assert torch.equal(one.row, many.row) and torch.equal(one.label, many.label)


def test_equally_near_samples_come_in_the_order_of_the_bank():
    bank = torch.tensor([[1.0, 0.0]] * 100)
    found = nearest(bank, torch.arange(100), torch.tensor([[1.0, 0.0]]), 3, block=10)
    assert found.row.tolist() == [[0, 1, 2]]
    late = nearest(bank[:5], torch.arange(5), torch.tensor([[1.0, 0.0]]), 3, first_row=50)
    assert late.merged(Nearest(*found), 4).row.shape == (1, 4)
