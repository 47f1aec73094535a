"""The list of preflight steps: a run raises the problems that they find, and `plan` prints them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from radioplat.data.loading.run_data import RunData
from radioplat.design.run import Run
from radioplat.errors import Problem
from radioplat.launch.preflight import (
    advice,
    dealing,
    feature_cache,
    memory,
    readiness,
    run_parts,
    teaching,
    workers,
    workload,
)
from radioplat.launch.preflight.preflight import Level, Preflight
from radioplat.spec.schema.root import Spec

STEPS: tuple[tuple[Level, Callable[[Preflight], Iterable[Problem] | None]], ...] = (
    (Level.start, advice.own_code),
    (Level.data, run_parts.contradictions),
    (Level.plan, teaching.partitions),
    (Level.plan, teaching.compat),
    (Level.data, run_parts.automatic),
    (Level.data, workers.precision),
    (Level.data, workers.spot),
    (Level.plan, teaching.stages),
    (Level.data, run_parts.models),
    (Level.start, readiness.teacher_weights),
    (Level.plan, teaching.losses),
    (Level.plan, teaching.targets),
    (Level.plan, teaching.left_out_heads),
    (Level.start, readiness.target_statistics),
    (Level.start, readiness.student_weights),
    (Level.start, readiness.step_hooks),
    (Level.data, run_parts.boxes),
    (Level.data, run_parts.samples),
    (Level.data, run_parts.average),
    (Level.data, run_parts.warm_up),
    (Level.plan, run_parts.sample_facts),
    (Level.start, run_parts.held_out),
    (Level.start, readiness.evaluation),
    (Level.data, run_parts.detector),
    (Level.plan, teaching.unshifted_views),
    (Level.plan, readiness.pruning),
    (Level.start, workers.replicas),
    (Level.start, readiness.placement),
    (Level.start, workers.compiling),
    (Level.plan, teaching.scheme),
    (Level.plan, teaching.unusual_inputs),
    (Level.start, feature_cache.repeated_views),
    (Level.start, feature_cache.feature_cache),
    (Level.plan, teaching.devices),
    (Level.plan, workload.arithmetic),
    (Level.plan, workload.sums),
    (Level.plan, dealing.dealing),
    (Level.plan, workload.gpus),
    (Level.plan, workload.operations),
    (Level.plan, workload.pace),
    (Level.plan, workload.sent),
    (Level.plan, memory.memory),
    (Level.plan, advice.unused_parts),
    (Level.plan, advice.advice),
    (Level.plan, run_parts.length),
    (Level.start, run_parts.head_fit),
    (Level.data, run_parts.labels),
    (Level.start, readiness.checkpoints),
)


def take_steps(preflight: Preflight) -> Preflight:
    """Run the steps of ``preflight.level``, in order; problems are collected, not raised."""
    for level, step in STEPS:
        if level <= preflight.level and not preflight.ended:
            preflight.take(step)
    return preflight


def prepare(spec: Spec, task: str, folder: Path) -> tuple[Run, RunData]:
    """Design a run without starting it: check the spec, index the shards, determine order and length.

    Args:
        task: ``distill`` or ``train``.
        folder: the task's results folder.

    Raises:
        RadioplatError: with all problems, except those of devices and weights.
    """
    preflight = take_steps(Preflight(spec, task, folder, Level.data))
    preflight.refuse()
    assert preflight.data is not None
    return preflight.run(), preflight.data
