"""What a classifier has right, within one guess and within five."""

from __future__ import annotations

import numpy as np
import torch

from radioplat.data.batch import Batch
from radioplat.evaluation.measure.rows import Rows
from radioplat.models.features import Features


def batch(label: list[int], weight: list[float]) -> Batch:
    count = len(label)
    ids = np.arange(count)
    return Batch(0, {}, ids, ids, np.array(weight, np.float32), np.array(label))


def test_top1_and_top5_of_the_labelled_and_readable():
    logits = torch.eye(8)[[0, 1, 2, 3]] + torch.linspace(0.5, 0, 8)  # the first guess, then 0, 1, 2, ...
    rows = Rows(["a", "few"])
    features = {
        "a": Features(torch.zeros(4, 2), None, {"logits": logits}),
        "few": Features(torch.zeros(4, 2), None, {"logits": logits[:, :3]}),
    }
    rows.add(batch([0, 3, 7, -1], [1, 1, 1, 1]), features)
    rows.add(batch([1, 1, 1, 1], [0, 0, 0, 0]), features)
    assert rows.accuracy() == {"a": 1 / 3, "few": 1 / 3}
    assert rows.accuracy(5) == {"a": 2 / 3, "few": 1 / 3}
