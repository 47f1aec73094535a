"""The stages of a run during training: absent teachers, number of steps, position in the schedule.

All of it follows from the spec and the global step: a run that goes on in the middle of a stage needs nothing more.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from radioplat.spec.resolved.image_sizes import FOREVER, stages_of
from radioplat.spec.schema.root import Spec
from radioplat.spec.schema.train import OptimConfig


def total_steps(spec: Spec, steps_per_epoch: int) -> int:
    """Optimizer steps of a run: those of its stages where it has any, else of its epochs; at most ``max_steps``."""
    whole = stages_of(spec)[-1].stop if spec.distill.stages else spec.train.num_epochs * steps_per_epoch
    return min(whole, spec.train.max_steps or FOREVER)


def away_by_step(spec: Spec, teachers: Sequence[str]) -> tuple[tuple[int, frozenset[str]], ...]:
    """For each stage its first step, and those of ``teachers`` that do not teach in it; empty where all always do."""
    stages = tuple((s.first, frozenset(name for name in teachers if not s.has(name))) for s in stages_of(spec))
    return stages if any(names for _, names in stages) else ()


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
        optim = dataclasses.replace(optim, head_warmup_epochs=0.0)  # by then the heads know their work
    return optim, step - stage.first, stage.stop - stage.first
