"""The stages of a run during training: unused teachers, number of steps, position in the schedule.

All of it depends only on the spec and the global step, so that a run can resume in the middle of a stage.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from radioplat.spec.resolved.image_sizes import FOREVER, stages_of
from radioplat.spec.schema.root import Spec
from radioplat.spec.schema.train import OptimConfig

_LEAST = 20  # steps without a teacher for which it is worth to load its weights again


def total_steps(spec: Spec, steps_per_epoch: int) -> int:
    """Return the optimizer steps of a run: those of its stages if any, else of its epochs; at most ``max_steps``."""
    whole = stages_of(spec)[-1].stop if spec.distill.stages else spec.train.num_epochs * steps_per_epoch
    return min(whole, spec.train.max_steps or FOREVER)


def away_by_step(spec: Spec, teachers: Sequence[str]) -> tuple[tuple[int, frozenset[str]], ...]:
    """Return the first step and the unused ones of ``teachers`` for each stage; empty if all are always used."""
    stages = tuple((s.first, frozenset(name for name in teachers if not s.has(name))) for s in stages_of(spec))
    return stages if any(names for _, names in stages) else ()


def resting(away: Sequence[tuple[int, frozenset[str]]], total: int, step: int) -> frozenset[str]:
    """Return the teachers that are not asked at ``step``, nor soon after it.

    A teacher that comes back is not among them in the last twentieth of its absence, in which it can load its weights.

    Args:
        away: see :func:`away_by_step`.
        total: steps of the run.
    """
    names = frozenset().union(*(absent for _, absent in away))
    return frozenset(name for name in names if _rests(away, total, step, name))


def _rests(away: Sequence[tuple[int, frozenset[str]]], total: int, step: int, name: str) -> bool:
    begin, absent = 0, False  # of the stages in a row with or without it, those with ``step``
    for first, names in away:
        if (name in names) != absent:
            if first > step:
                return absent and first - begin >= _LEAST and step < first - max(1, (first - begin) // 20)
            begin, absent = first, name in names
    return absent and step < total and total - begin >= _LEAST


def schedule_at(spec: Spec, step: int, total: int) -> tuple[OptimConfig, int, int]:
    """Return the learning-rate schedule at global ``step``: optimizer fields, a step, and the number of steps.

    In a stage the schedule, warm-up included, runs from the stage's first step to its last, at the stage's ``lr``.

    Args:
        total: steps of the run.
    """
    optim = spec.train.optim
    if not spec.distill.stages:
        return optim, step, total
    stage = next(s for s in reversed(stages_of(spec)) if s.first <= step)
    if stage.lr is not None:
        optim = dataclasses.replace(optim, lr=stage.lr)
    if stage.first:
        optim = dataclasses.replace(optim, head_warmup_epochs=0.0)  # the heads are trained already
    return optim, step - stage.first, stage.stop - stage.first
