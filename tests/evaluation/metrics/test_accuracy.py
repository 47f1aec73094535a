"""What a classifier has right, within one guess and within five."""

from __future__ import annotations

import numpy as np
import torch

from radioplat.data.batch import Batch
from radioplat.evaluation.metrics.accuracy import Accuracy, AccuracyResult
from radioplat.evaluation.metrics.encoded_batch import EncodedBatch
from radioplat.evaluation.metrics.metric import Setup
from radioplat.evaluation.models.evaluated_model import EvaluatedModel
from radioplat.models.features import Features
from radioplat.spec.schema.root import Spec


def batch(label: list[int], weight: list[float]) -> Batch:
    count = len(label)
    ids = np.arange(count)
    return Batch(0, {}, ids, ids, np.array(weight, np.float32), np.array(label))


def test_top1_and_top5_of_the_labelled_and_readable():
    logits = torch.eye(8)[[0, 1, 2, 3, 0]] + torch.linspace(0.5, 0, 8)  # the first guess, then 0, 1, 2, ...
    features = {
        "a": Features(torch.zeros(5, 2), None, {"logits": logits}),
        "few": Features(torch.zeros(5, 2), None, {"logits": logits[:, :3]}),
        "none": Features(torch.zeros(5, 2)),
    }
    models = {name: EvaluatedModel(lambda images: Features(), 32, None) for name in features}
    metric = Accuracy(Setup(Spec(), models, {}, 5))
    metric.update(EncodedBatch.of(batch([0, 3, 7, -1, 1], [1, 1, 1, 1, 0]), features, models))
    assert EncodedBatch.of(batch([1] * 5, [0] * 5), features, models) is None
    result = metric.result()
    assert result == {"a": AccuracyResult(1 / 3, 2 / 3), "few": AccuracyResult(1 / 3, 1 / 3)}
    assert Accuracy.figures(result) == {} and Accuracy.of_model(result, "a") == 1 / 3
    assert Accuracy.figures({"student": result["a"]}) == {"accuracy": 1 / 3, "accuracy/top5": 2 / 3}
