"""Which checkpoints stay."""

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

SCORES = "validation.json"  # in a checkpoint's folder, written after it: what its validation found
# The first of them that was measured counts; larger is better.
METRICS = tuple(dict.fromkeys(column for task in TRAINING_TASKS for column in task.columns))


class Standing(NamedTuple):
    """Global step of a checkpoint, and its score if it was validated."""

    step: int
    score: float | None = None


def checkpoints_to_remove(known: Mapping[str, Standing], newest: int, train: TrainConfig) -> set[str]:
    """Names that ``train.keep_last``, ``keep_best`` and ``keep_every`` do not keep; none where ``keep_last`` is unset.

    Args:
        found: all there are, by name.
        newest: step of the newest that was committed. What claims more steps was left behind by a way that is no
            longer gone: it counts for nothing, and is not touched.
    """
    if train.keep_last is None:
        return set()
    mine = {name: standing for name, standing in known.items() if 0 <= standing.step <= newest}
    by_step = sorted(mine, key=lambda name: mine[name].step, reverse=True)
    # Of equal scores the later one.
    scores = {name: score for name in by_step if (score := mine[name].score) is not None}
    best = sorted(scores, key=lambda name: scores[name], reverse=True)[: train.keep_best]
    keep = {name for name in mine if mine[name].step == newest} | set(by_step[: train.keep_last]) | set(best)
    if train.keep_every is not None:
        keep |= {name for name in mine if mine[name].step % train.keep_every == 0}
    return set(mine) - keep


def standings(folder: Path) -> dict[str, Standing]:
    """Every checkpoint of ``folder`` by its name."""
    steps = {path: step_of(path) for path in folder.glob("model_epoch_*") if path.is_dir()}
    return {path.name: Standing(step, score_of(path)) for path, step in steps.items() if step is not None}


def score_of(checkpoint: Path) -> float | None:
    """The score of a checkpoint that was validated."""
    with contextlib.suppress(OSError):
        return read_score((checkpoint / SCORES).read_bytes())
    return None


def read_score(text: bytes) -> float | None:
    """The score in what :func:`write_scores` wrote; None where there is none."""
    try:
        kpi = json.loads(text)
        score = float(next(kpi[name] for name in METRICS if name in kpi))
    except (ValueError, TypeError, KeyError, StopIteration):
        return None
    return score if math.isfinite(score) else None


def write_scores(checkpoint: Path, kpi: Mapping[str, float]) -> Path:
    """Write what a validation found into the checkpoint's folder."""
    return write_atomic(checkpoint / SCORES, json.dumps(dict(kpi), indent=1) + "\n")


def prune(folder: Path, newest: int, train: TrainConfig, also: frozenset[str] = frozenset()) -> None:
    """Remove the checkpoints_to_remove from ``folder``, and those of ``also``."""
    known = standings(folder)
    for name in sorted(checkpoints_to_remove(known, newest, train) | (also & set(known))):
        remove(folder / name)
