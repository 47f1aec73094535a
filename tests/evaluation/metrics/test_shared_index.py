"""kNN with another model's index, against scikit-learn's search over that model's features."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from sklearn.neighbors import NearestNeighbors

from radioplat.evaluation.metrics.metric import Setup
from radioplat.evaluation.metrics.shared_index import SharedIndex
from radioplat.spec.schema.root import Spec


class Known(SimpleNamespace):
    """Summaries of a split."""

    def of(self, model):
        """Return those of a model."""
        return self.features[model]


def setup(reference="teacher", seed=0):
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(4, 16, generator=generator)
    labels = [torch.randint(0, 4, (size,), generator=generator) for size in (80, 50)]
    bank, queries = (centres[each] + 0.8 * torch.randn(len(each), 16, generator=generator) for each in labels)
    turned = torch.linalg.qr(torch.randn(16, 16, generator=generator)).Q
    made = [
        {
            "teacher": rows,
            "near": rows + 0.3 * torch.randn(rows.shape, generator=generator),
            "turned": rows @ turned,
            "narrow": rows[:, :8],
            "frozen": rows,
        }
        for rows in (bank, queries)
    ]
    models = {name: SimpleNamespace(heads=None if name == "frozen" else object()) for name in made[0]}
    training, held_out = (
        Known(features=features, labels=each, labelled=True) for features, each in zip(made, labels, strict=True)
    )
    spec = Spec()
    spec.evaluate.knn_k = 1
    return Setup(spec, models, {}, 50, reference, training=training, held_out=held_out)


def test_queries_of_a_model_find_their_neighbours_in_the_first_ones_index():
    given = setup()
    result = SharedIndex(given).result()
    assert list(result) == ["teacher", "near", "turned"]  # another width, and a teacher that is not listed, have none
    index = given.training.of("teacher")
    search = NearestNeighbors(n_neighbors=1, metric="cosine", algorithm="brute").fit(index.numpy())
    for name, found in result.items():
        (nearest,) = search.kneighbors(given.held_out.of(name).numpy(), return_distance=False).T
        assert found.top1 == pytest.approx((given.training.labels[nearest] == given.held_out.labels).float().mean())
    # Turned features have the same neighbours among themselves, and are lost in an index that is not turned.
    assert result["near"].top1 > 0.6 > result["turned"].top1
    assert SharedIndex.of_model(result, "near") == result["near"].top1
    (table,) = SharedIndex.tables(result)
    assert [row[0] for row in table.rows] == list(result)


def test_a_single_model_and_images_without_labels_have_none():
    assert SharedIndex(setup(reference=None)).result() == {}
    given = setup()
    given.held_out.labelled = False
    assert SharedIndex(given).result() == {}
