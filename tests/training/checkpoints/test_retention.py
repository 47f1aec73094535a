"""Which checkpoints stay: rules on small examples, and what holds of any."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radioplat.spec.schema.train import TrainConfig
from radioplat.training.checkpoints.checkpoint import STATE
from radioplat.training.checkpoints.retention import (
    METRICS,
    Standing,
    checkpoints_to_remove,
    prune,
    score_of,
    write_scores,
)

SCORES = {10: 0.3, 20: 0.9, 30: None, 40: 0.9, 50: 0.1, 60: None}
FOUND = {f"model_epoch_{step:03d}": Standing(step, score) for step, score in SCORES.items()}


def config(**changes) -> TrainConfig:
    return dataclasses.replace(TrainConfig(), **changes)


@pytest.mark.parametrize(
    ("changes", "stay"),
    [
        ({}, [10, 20, 30, 40, 50, 60]),  # as long as nobody asks, all
        ({"keep_last": 1}, [60]),
        ({"keep_last": 2}, [50, 60]),
        ({"keep_last": 9}, [10, 20, 30, 40, 50, 60]),
        ({"keep_last": 1, "keep_best": 1}, [40, 60]),  # of two as good the later
        ({"keep_last": 1, "keep_best": 2}, [20, 40, 60]),
        ({"keep_last": 1, "keep_best": 9}, [10, 20, 40, 50, 60]),  # what was never measured is not among the best
        ({"keep_last": 1, "keep_every": 20}, [20, 40, 60]),
        ({"keep_last": 2, "keep_every": 30, "keep_best": 1}, [30, 40, 50, 60]),
    ],
)
def test_rules(changes, stay):
    gone = checkpoints_to_remove(FOUND, 60, config(**changes))
    assert sorted(FOUND[name].step for name in set(FOUND) - gone) == stay


def test_what_claims_more_steps_than_the_newest_counts_for_nothing():
    """Torn ones of an earlier way: were they counted among the newest, they would push out those that are whole."""
    assert checkpoints_to_remove(FOUND, 40, config(keep_last=2)) == {"model_epoch_010", "model_epoch_020"}
    unknown = {"model_epoch_001": Standing(-1)}  # its step
    assert checkpoints_to_remove(unknown, 40, config(keep_last=1)) == set()


@settings(deadline=None)
@given(
    st.dictionaries(st.integers(0, 30), st.none() | st.floats(0, 1), min_size=1),
    st.integers(1, 4), st.integers(0, 3), st.none() | st.integers(1, 7),
)  # fmt: skip
def test_the_newest_always_stays_and_more_rules_never_remove_more(steps, last, best, every):
    found = {str(step): Standing(step, score) for step, score in steps.items()}
    newest, train = max(steps), config(keep_last=last, keep_best=best, keep_every=every)
    gone = checkpoints_to_remove(found, newest, train)
    assert str(newest) not in gone
    assert gone <= checkpoints_to_remove(found, newest, config(keep_last=last))
    stay = set(found) - gone
    assert len(stay) >= min(last, len(found))
    if every is None:
        assert len(stay) <= last + best
    # Pruning again removes nothing more.
    assert not checkpoints_to_remove({name: found[name] for name in stay}, newest, train)


def test_on_the_disk(tmp_path):
    for step in (2, 4, 6, 8):
        folder = tmp_path / f"model_epoch_{step:03d}"
        folder.mkdir()
        (folder / STATE).write_text(json.dumps({"global_step": step}))
    write_scores(tmp_path / "model_epoch_004", {"knn/top1": 0.5, "knn/top5": 1.0})
    write_scores(tmp_path / "model_epoch_002", {"knn/top1": 0.25})
    (tmp_path / "model_latest").symlink_to("model_epoch_008")
    assert score_of(tmp_path / "model_epoch_004") == 0.5 and score_of(tmp_path / "model_epoch_006") is None
    prune(tmp_path, 8, config())
    assert len(list(tmp_path.iterdir())) == 5
    prune(tmp_path, 8, config(keep_last=1, keep_best=1))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model_epoch_004", "model_epoch_008", "model_latest"]


def test_a_classifier_is_judged_by_itself_and_not_by_its_neighbours(tmp_path):
    """kNN and the classifier disagree about which is best."""
    assert METRICS == ("mAP", "accuracy/top1", "knn/top1")
    for step, own, neighbours in ((2, 0.9, 0.1), (4, 0.5, 0.9), (6, 0.4, 0.8)):
        folder = tmp_path / f"model_epoch_{step:03d}"
        folder.mkdir()
        (folder / STATE).write_text(json.dumps({"global_step": step}))
        write_scores(folder, {"knn/top1": neighbours, "accuracy/top1": own, "accuracy/top5": 1.0})
    prune(tmp_path, 6, config(keep_last=1, keep_best=1))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model_epoch_002", "model_epoch_006"]
