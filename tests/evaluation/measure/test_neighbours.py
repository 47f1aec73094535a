import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestNeighbors

from radioplat.evaluation.measure.neighbours import nearest_rows, spread_over_classes


def test_neighbours_are_those_of_scikit_learn():
    generator = torch.Generator().manual_seed(0)
    bank, queries = torch.randn(200, 16, generator=generator), torch.randn(7, 16, generator=generator)
    reference = NearestNeighbors(n_neighbors=3, metric="cosine").fit(bank.numpy()).kneighbors(queries.numpy())[1]
    assert (nearest_rows(bank, queries, 3) == reference).all()
    assert nearest_rows(bank[:2], queries, 3).shape == (7, 2)


@pytest.mark.parametrize(
    ("labels", "count", "rows"),
    [
        ([5, 5, 1, 1, 3, 2, 2, 9], 3, [2, 4, 7]),  # the first of classes 1, 3 and 9 of 1, 2, 3, 5, 9
        ([0, 0, 0, 1], 3, [0, 1, 3]),  # fewer classes than rows
        ([-1, 0, 1], 2, [0, 2]),  # without labels: evenly spaced
        ([], 4, []),
    ],
)
def test_chosen_images_are_of_different_classes(labels, count, rows):
    assert spread_over_classes(np.array(labels, int), count).tolist() == rows
