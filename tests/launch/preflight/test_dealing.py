"""What `plan` expects of workers that share a step of mixed image sizes."""

from __future__ import annotations

from pathlib import Path

import pytest

from radioplat.cluster.resources import Resources
from radioplat.design.models import design_models
from radioplat.launch.preflight.dealing import dealing
from radioplat.launch.preflight.preflight import Preflight
from radioplat.spec.loading.load import load_spec

KEY = "micro-batches of a step"


def told(sizes: dict[int, float], *overrides: str) -> Preflight:
    """A small ViT on so many workers; the share of micro-batches of each size."""
    tree = {
        "model": {"backbone": {"type": "radio_vit_tiny_patch16", "kwargs": {"depth": 1}}},
        "dataset": {"img_size": 64, "batch_size": 8},
        "train": {"num_gpus": 4, "global_batch_size": 8 * 16, "precision": "fp32"},
        "distill": {
            "teacher": [
                {"name": "t", "mode": "summary", "model": {"backbone": {"type": "test_vit"}}, "input_size": 64}
            ],
            "partitions": [{"share": 1.0, "teachers": ["t"], "sizes": sizes}],
        },
    }
    spec = load_spec(tree, list(overrides))
    found = Preflight(spec, "distill", Path("nowhere"), resources=Resources(8, 0, ()), on_ray=True)
    found.models = design_models(spec, "distill")
    found.take(dealing)
    assert not found.problems
    return found


def test_micro_batches_that_cost_alike_are_not_mentioned():
    assert told({64: 1.0}).facts == {} and told({64: 0.5, 128: 0.5}, "train.num_gpus=1").facts == {}


def test_even_dealing_of_unlike_ones_is_a_warning():
    found = told({64: 0.5, 128: 0.5}, "train.dealing=even")
    fact, (warning,) = found.facts[KEY], found.warnings
    assert fact.startswith("16 of 64 to 128 px a side, dealt evenly (train.dealing): the slowest of 4 workers")
    assert "train.dealing is even" in warning and "the student learns the same" in warning


def test_by_cost_it_says_what_that_gains():
    found = told({64: 0.5, 128: 0.5}, "train.dealing=cost")
    slowest, even = (float(found.facts[KEY].split(words)[1].split()[0]) for words in ("to take ", "it would be "))
    assert 1 <= slowest < 1.1 < even < 2 and not found.warnings


@pytest.mark.parametrize("stage", [1, 2])
def test_a_micro_batch_that_costs_more_than_a_share_is_a_warning_that_names_a_smaller_one(stage):
    found = told({32: 0.95, 512: 0.05}, "train.dealing=cost", f"train.zero_stage={stage}")
    (warning,) = found.warnings
    assert warning.startswith("a micro-batch of the largest images costs more than a worker's share of a step")
    assert "with dataset.batch_size 1 it would be " in warning or "with dataset.batch_size 2 it would be " in warning


def test_where_images_cannot_be_divided_it_names_the_other_field():
    found = told({32: 0.95, 512: 0.05}, "train.dealing=cost", "dataset.batch_size=1", "train.global_batch_size=16")
    assert found.warnings[0].endswith("a larger train.global_batch_size gives workers more micro-batches to share")
