"""Decide which checkpoints to keep, and remove the others."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from radioplat.spec.checks.tasks.training_task import TRAINING_TASKS
from radioplat.spec.schema.train import TrainConfig
from radioplat.tracking.results import write_atomic
from radioplat.training.checkpoints.checkpoint import remove, step_of

SCORES = "validation.json"  # validation results in a checkpoint's folder, written later
# The first of these that was measured is the score; larger is better.
METRICS = tuple(dict.fromkeys(column for task in TRAINING_TASKS for column in task.columns))


class Standing(NamedTuple):
    """Global step of a checkpoint, and its validation score; None if it was not validated."""

    step: int
    score: float | None = None


def checkpoints_to_remove(known: Mapping[str, Standing], newest: int, train: TrainConfig) -> set[str]:
    """Return the names that ``train.keep_last``, ``keep_best`` and ``keep_every`` do not keep.

    The set is empty if ``keep_last`` is unset.

    Args:
        known: all checkpoints, by name.
        newest: step of the newest committed checkpoint. Checkpoints with more steps belong to steps that were abandoned
            (for example by resuming from an older checkpoint): they are neither counted nor removed.
    """
    if train.keep_last is None:
        return set()
    mine = {name: standing for name, standing in known.items() if 0 <= standing.step <= newest}
    by_step = sorted(mine, key=lambda name: mine[name].step, reverse=True)
    # Of equal scores, the later checkpoint comes first, because `sorted` is stable.
    scores = {name: score for name in by_step if (score := mine[name].score) is not None}
    best = sorted(scores, key=lambda name: scores[name], reverse=True)[: train.keep_best]
    keep = {name for name in mine if mine[name].step == newest} | set(by_step[: train.keep_last]) | set(best)
    if train.keep_every is not None:
        keep |= {name for name in mine if mine[name].step % train.keep_every == 0}
    return set(mine) - keep


def standings(folder: Path) -> dict[str, Standing]:
    """Return step and score of every checkpoint in ``folder``, by name."""
    steps = {path: step_of(path) for path in folder.glob("model_epoch_*") if path.is_dir()}
    return {path.name: Standing(step, score_of(path)) for path, step in steps.items() if step is not None}


def score_of(checkpoint: Path) -> float | None:
    """Return the validation score of a checkpoint; None if it has none."""
    with contextlib.suppress(OSError):
        return read_score((checkpoint / SCORES).read_bytes())
    return None


def read_score(text: bytes) -> float | None:
    """Return the score in a file written by :func:`write_scores`; None if it has none."""
    try:
        kpi = json.loads(text)
        score = float(next(kpi[name] for name in METRICS if name in kpi))
    except (ValueError, TypeError, KeyError, StopIteration):
        return None
    return score if math.isfinite(score) else None


def write_scores(checkpoint: Path, kpi: Mapping[str, float]) -> Path:
    """Write validation results into the checkpoint's folder and return the file's path."""
    return write_atomic(checkpoint / SCORES, json.dumps(dict(kpi), indent=1) + "\n")


def prune(folder: Path, newest: int, train: TrainConfig, also: frozenset[str] = frozenset()) -> None:
    """Remove the :func:`checkpoints_to_remove` and those in ``also`` from ``folder``."""
    known = standings(folder)
    for name in sorted(checkpoints_to_remove(known, newest, train) | (also & set(known))):
        remove(folder / name)
