"""Preflight steps on what the workers are: their precision, whether they can compile, and their teachers' replicas."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from radioplat.cluster.ray_cluster import cluster_resources, uses_ray
from radioplat.cluster.resources import Resources
from radioplat.design.automatic import Decision
from radioplat.design.student import compiler_problems
from radioplat.design.workload.pace import automatic_replicas
from radioplat.design.workload.precision import decide_precision
from radioplat.design.workload.work import Work, work_of
from radioplat.errors import Problem, RadioplatError
from radioplat.launch.preflight.preflight import Level, Preflight
from radioplat.spec.checks.training.zero import zero_problems
from radioplat.spec.resolved.reduction import is_exact
from radioplat.spec.schema.cluster import AUTO
from radioplat.spec.schema.model import ModelTask
from radioplat.spec.schema.train import Reduction, TrainConfig

_ON_SPOT: dict[str, Any] = {"checkpoint_minutes": 5.0, "keep_last": 3, "max_failures": 10}  # of `train`


def precision(preflight: Preflight) -> Iterable[Problem]:
    """Decide what all workers compute in and how they add up (``train.precision``, ``tf32``, ``reduction``,
    ``threads``); a run that has begun keeps its own. Return why its sums cannot be exact, if they were to be.
    """
    spec = preflight.spec
    if preflight.level >= Level.start:
        with contextlib.suppress(RadioplatError):  # of the cluster: the step `placement` reports it
            preflight.on_ray = uses_ray(spec)
            preflight.resources = cluster_resources(spec) if preflight.on_ray else Resources.this_machine()
    beginning = preflight.beginning
    earlier = beginning.spec.train if beginning.spec else TrainConfig() if beginning.begun else None
    preflight.spec = copy.deepcopy(spec)
    train = preflight.spec.train
    if train.tf32 is None:
        train.tf32 = earlier.tf32 if earlier else True
    train.reduction = train.reduction or (earlier.reduction if earlier else None) or Reduction.fast
    # Threads that an exact run had because it was exact are none that a fast one has.
    kept = earlier.threads if earlier and (is_exact(train) or not is_exact(earlier)) else None
    train.threads = train.threads or kept or (1 if is_exact(train) else None)
    decision = decide_precision(spec, preflight.resources or Resources.this_machine(), earlier)
    if decision is not None:
        train.precision = decision.value
        preflight.decide(*[decision] if decision.reason else [])
    return zero_problems(preflight.spec) if is_exact(train) else ()


def spot(preflight: Preflight) -> None:
    """Decide what a run on spot nodes has by default; a run that has begun keeps what it had."""
    given, resources, earlier = preflight.spec.cluster.spot, preflight.resources, preflight.beginning.spec
    if given is None and resources is not None and preflight.on_ray:
        given = resources.spot
    preflight.spec = copy.deepcopy(preflight.spec)
    train = preflight.spec.train
    if earlier is not None and preflight.spec.cluster.spot is None:
        values = {name: getattr(earlier.train, name) for name in _ON_SPOT}
    else:
        values = _ON_SPOT if given else {}
    for name, value in values.items():
        if getattr(train, name) is None and value is not None:
            setattr(train, name, value)
            preflight.decide(*[] if earlier is not None else [Decision(f"train.{name}", value, "spot nodes")])


def compiling(preflight: Preflight) -> Iterator[Problem]:
    """Check that the workers can compile the student; record what is compiled."""
    if preflight.spec.train.compile and preflight.models is not None:
        terms = [teacher.name for teacher in preflight.models.teachers if teacher.terms]
        losses = f"head and losses of each of {', '.join(terms)}" if terms else "loss of the labels"
        mesa = ", the MESA loss" if terms and preflight.spec.distill.mesa.weight else ""
        preflight.facts["compiled"] = f"the backbone, the {losses}{mesa}; graphs are made as sizes of images come up"
    if preflight.resources is not None:
        yield from compiler_problems(preflight.spec, preflight.resources.gpus > 0)


def replicas(preflight: Preflight) -> None:
    """Decide ``teachers.<name>.replicas: auto`` on GPUs; on CPUs it is one."""
    models = preflight.models
    if models is None or not any(t.service.replicas == AUTO for t in models.teachers if not t.inside):
        return
    counts, work = {}, work_on_gpus(preflight)
    if work is not None and preflight.resources is not None:
        counts = automatic_replicas(preflight.spec, models.teachers, work, preflight.resources)
    teachers = [
        replace(t, service=replace(t.service, replicas=counts.get(t.name, 1))) if t.service.replicas == AUTO else t
        for t in models.teachers
    ]
    preflight.models = replace(models, teachers=teachers)
    reason = "as many as keep up with the students and have a GPU"
    preflight.decide(*(Decision(f"teachers.{name}.replicas", count, reason) for name, count in counts.items()))


def work_on_gpus(preflight: Preflight) -> Work | None:
    """Return the operations of an image; None without GPUs, where they say little, and for detectors, whose own are not
    counted."""
    models, resources, spec = preflight.models, preflight.resources, preflight.spec
    if models is None or resources is None or not resources.gpus or spec.model.task is ModelTask.detection:
        return None
    if preflight.work is None:
        preflight.work = work_of(spec, models, preflight.on_ray)
    return preflight.work
