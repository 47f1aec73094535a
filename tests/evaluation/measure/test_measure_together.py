"""Fidelity and similarity of features that ranks measure together, and a metric that fails on one of them."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import torch.distributed as dist
from forked import run_ranks

from radioplat.common.ranks import ALONE, Ranks
from radioplat.data.batch import Batch, View
from radioplat.errors import RadioplatError
from radioplat.evaluation.measure.measure import measure_together
from radioplat.evaluation.metrics.feature_similarity import FeatureSimilarity
from radioplat.evaluation.metrics.fidelity import Fidelity
from radioplat.evaluation.metrics.metric import Setup
from radioplat.evaluation.metrics.shared_knn import SharedKnn
from radioplat.evaluation.models.evaluated_model import EvaluatedModel, NamedHeads
from radioplat.models.features import Features
from radioplat.spec.loading.load import load_spec

pytestmark = pytest.mark.timeout(1200)
SIDE, BATCH = 8, 3


class Pictures:
    """Images drawn from their ids, in batches; ``seed`` differs between splits.

    The last batch is not full, one image is unreadable, and so is a whole batch.
    """

    def __init__(self, ids: np.ndarray, seed: int) -> None:
        self.rows, self.batch_size, self._seed = ids, BATCH, seed

    def share(self, ranks: Ranks) -> Pictures:
        """Whole batches in turn."""
        return Pictures(self.rows[ranks.share(len(self.rows), BATCH)], self._seed)

    def batches(self):
        """Yield the batches."""
        for start in range(0, len(self.rows), BATCH):
            ids = self.rows[start : start + BATCH]
            pixels = [np.random.default_rng([self._seed, i]).integers(0, 256, (3, SIDE, SIDE), np.uint8) for i in ids]
            weight = np.array([float(i != 2 and not 6 <= i < 9) for i in ids], np.float32)
            view = View(np.stack(pixels), np.zeros((len(ids), 3, 3), np.float32))
            yield Batch(0, {str(SIDE): view}, ids, ids, weight, ids % 4)


def encoder(seed: int, width: int, bad: int | None = None):
    """Features by a fixed random matrix; an image whose first pixel is ``bad`` has a NaN."""
    weight = torch.randn(3 * SIDE * SIDE, 5 * width, generator=torch.Generator().manual_seed(seed))

    def encode(images: torch.Tensor) -> Features:
        values = (images.flatten(1).float() / 255 - 0.5) @ weight
        if bad is not None:
            values[images[:, 0, 0, 0] == bad] = torch.nan
        summary, spatial = values[:, :width].tanh(), values[:, width:].tanh()
        named = {"t.summary": summary * 2 + 1, "t.spatial": spatial.view(-1, 2, 2, width) - 1}
        return Features(summary, spatial.view(-1, 2, 2, width), named)

    return encode


def figures(ranks: Ranks, images: int, queries: int, bad: int | None = None) -> dict:
    """Every figure of two students and a teacher."""
    heads = NamedHeads({("t", "summary"): 6, ("t", "spatial"): 6})
    models = {
        "student": EvaluatedModel(encoder(0, 6, bad), SIDE, heads),
        "converted": EvaluatedModel(encoder(1, 6), SIDE, heads),
        "t": EvaluatedModel(encoder(2, 6), SIDE, None),
    }
    spec = load_spec({"evaluate": {"cka_rows": 0, "pictures": 0, "knn_k": 3}})
    setup = Setup(spec, models, {"t": ["summary", "spatial"]}, queries, "student")
    metrics = [SharedKnn(setup), Fidelity(setup), FeatureSimilarity(setup)]
    splits = [Pictures(np.arange(count), seed) for seed, count in enumerate((images, queries))]
    results = measure_together(ranks, setup, metrics, *splits).results
    flat = {f"knn/{name}": [r.top1, r.top5, r.count, r.bank, r.k, r.classes] for name, r in results["knn"].items()}
    for name, teachers in results["fidelity"].items():
        flat |= {f"fidelity/{name}/{k}": [r.centered, r.plain, r.count] for k, r in teachers["t"].items()}
    for name, kinds in results["feature_similarity"].items():
        flat |= {f"similarity/{name}/{k}": [r.centered, r.plain, r.count] for k, r in kinds.items()}
    return flat


def first_pixel(image: int) -> int:
    """The first pixel of a held-out image."""
    return int(np.random.default_rng([1, image]).integers(0, 256, (3, SIDE, SIDE), np.uint8)[0, 0, 0])


def bad_image(world: int) -> int:
    """A held-out image of the last rank, in a batch that can be read."""
    return BATCH * (2 * world - 1)


CASES = {"some": (26, 17), "few": (10, 2)}  # of few, some ranks have no held-out image


def work() -> None:
    """One rank: print the figures, and the error of a metric that fails for an image of the last rank alone."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    ranks = Ranks(rank, world)
    answer: dict = {name: figures(ranks, *case) for name, case in CASES.items()}
    try:
        figures(ranks, 26, 17, first_pixel(bad_image(world)))
    except RadioplatError as error:
        answer["error"] = [str(error), error.agreed]
    print(json.dumps(answer))
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("world", [1, 2, 3])
def test_ranks_have_the_figures_of_one(world):
    answers = [json.loads(text.strip().splitlines()[-1]) for text in run_ranks(work, world=world, seconds=500)]
    assert all(answer == answers[0] for answer in answers)
    for name, case in CASES.items():
        expected, actual = figures(ALONE, *case), answers[0][name]
        assert actual.keys() == expected.keys()
        for figure, values in expected.items():
            if figure.startswith("knn"):
                assert actual[figure] == values
            else:
                assert actual[figure] == pytest.approx(values, abs=1e-12) and actual[figure][2] == values[2]
        assert expected["knn/student"][2:4] == [{"some": 13, "few": 2}[name], {"some": 22, "few": 6}[name]]
    assert [first_pixel(i) for i in range(17)].count(first_pixel(bad_image(world))) == 1  # on this rank alone
    assert answers[0]["error"] == ["the student's features are not finite", True]
