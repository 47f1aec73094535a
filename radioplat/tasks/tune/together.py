"""Trials that differ in the student alone learn from one pass of the teachers, in one process of Ray Tune."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from radioplat.common.terminal import note
from radioplat.errors import RadioplatError, SpecError, Stopped, TrainingError, WeightsError
from radioplat.launch.driver import StudentsFailed
from radioplat.spec.checks.teaching.students import COMMON_DISTILL, OWN_TRAIN
from radioplat.spec.schema.model import ModelTask
from radioplat.spec.schema.root import Spec
from radioplat.tasks.distill.distill import distill_together
from radioplat.tasks.shared.find_checkpoint import LATEST
from radioplat.tasks.shared.interruption import InterruptionWatch
from radioplat.tasks.tune.judge import judge
from radioplat.tasks.tune.space import Algorithm, SchedulerType, SharePass, TuneTask
from radioplat.tasks.tune.sweep import Plan, trial_spec
from radioplat.tasks.tune.trial_log import log_trials
from radioplat.tasks.tune.trial_record import State, TrialRecord, claim
from radioplat.tracking.follow import Callback, CheckpointEvent, StepEvent
from radioplat.tracking.teacher_cost import TeacherCosts
from radioplat.training.loop.ended_student import EndedStudent

TOGETHER = "together"  # in the configuration of Ray's trial: the trials of one pass


def why_apart(plan: Plan) -> str:
    """Return why the trials of a sweep cannot learn from one pass of the teachers; empty if they can."""
    space, common = plan.space, plan.common
    if space.share_pass is SharePass.never:
        return "share_pass: never"
    if space.task is not TuneTask.distill or common.model.task is not ModelTask.features:
        return "only distillations of features have teachers in common"
    if space.scheduler.type is not SchedulerType.none:
        return f"scheduler {space.scheduler.type.value} ends single trials"
    if space.search.algorithm is Algorithm.optuna:
        return "optuna suggests each trial from those before"
    if space.budget.hours is not None or space.budget.money is not None:
        return "a budget of hours or money counts single trials"
    if common.feature_cache.folder is not None:
        return "the feature cache has the teachers' answers for all of them"
    if common.train.resume_training_checkpoint_path:
        return "they go on from a checkpoint"
    differs = [path for path in space.parameters if not _is_own(path)]
    return f"{differs[0]} is not the student's alone" if differs else ""


def _is_own(path: str) -> bool:
    """Return whether a field can differ between students of one pass."""
    section, _, rest = path.partition(".")
    first = rest.partition(".")[0].partition("[")[0]
    own = {"model": first != "task", "train": first in OWN_TRAIN, "distill": first not in COMMON_DISTILL}
    return own.get(section, False)


def run_together(
    home: Path,
    start: str,
    points: Sequence[dict[str, Any]],
    resources: tuple[float, float],
    watch: InterruptionWatch,
) -> None:
    """Run several trials as students of one pass; interrupted ones continue.

    Args:
        start: name of this start of the sweep.
        points: number and values of each trial.
        resources: number of CPUs and GPUs of a single trial, for their cost.
    """
    from ray import tune
    from ray.exceptions import RayActorError

    plan = Plan.read(home)
    os.chdir(plan.cwd if Path(plan.cwd).is_dir() else home)
    owner = f"{start}/{tune.get_context().get_trial_id()}"
    # An owner each: an owner's second claim would be answered with its first record.
    records = [claim(home, point["values"], f"{owner}/{point['number']}", point["number"]) for point in points]
    records = [record for record in records if record.state not in (State.done, State.failed)]
    for record in records:
        record.state, record.starts = State.running, record.starts + 1
        record.write(home)
    specs = {record.name: trial_spec(plan, record) for record in records}
    begin, paid = time.monotonic(), {name: _teacher_money(spec) for name, spec in specs.items()}

    def follow(event: StepEvent | CheckpointEvent) -> None:
        """Note the progress of all."""
        if isinstance(event, StepEvent):
            for record in records:
                record.step, record.steps = event.step, event.max_step

    try:
        with watch.watching():
            reasons = _distilled(plan, specs, follow)
    except Stopped:
        _settle(plan, records, begin, resources, paid)
        if watch.node_draining:
            raise RayActorError(error_msg="its node is drained, and it has saved", preempted=True) from None
        tune.report({"step": 0})
        return
    _settle(plan, records, begin, resources, paid)
    for record in records:
        _judge(plan, record, reasons.get(record.name, ""))
    log_trials([(specs[record.name], record) for record in records if record.state is State.done])
    tune.report({"step": max((record.step for record in records), default=0)})


def _distilled(plan: Plan, specs: dict[str, Spec], follow: Callback) -> dict[str, str]:
    """Distil all; return the reason by name of a trial for those that failed: whose student lacks steps.

    If they are refused before the first step, because of one of them or of what they do not have in common, each learns
    alone, as trials apart do.
    """
    if not specs:
        return {}
    try:
        distill_together(specs, plan.home / TOGETHER / next(iter(specs)), [follow], note)
    except (SpecError, WeightsError) as error:
        if len(specs) == 1:
            return dict.fromkeys(specs, str(error))
        note(f"these trials cannot share a pass, and each learns alone: {error}")
        return {name: why for each in specs.items() for name, why in _distilled(plan, dict([each]), follow).items()}
    except TrainingError as error:
        whole = error.whole if isinstance(error, StudentsFailed) else {}
        ended = {name: EndedStudent.read(Path(specs[name].results_dir) / "distill") for name in specs.keys() - whole}
        return {name: one.reason if one else str(error) for name, one in ended.items()}
    except RadioplatError as error:
        return dict.fromkeys(specs, str(error))
    return {}


def _teacher_costs(spec: Spec) -> TeacherCosts:
    return TeacherCosts.read(Path(spec.results_dir) / "distill") or TeacherCosts()


def _teacher_money(spec: Spec) -> float:
    """Return the price of the teachers' work for a trial so far."""
    costs = _teacher_costs(spec)
    return sum(costs.prices.of(cost) or 0.0 for cost in costs.teachers.values())


def _settle(
    plan: Plan,
    records: Sequence[TrialRecord],
    begin: float,
    resources: tuple[float, float],
    paid: dict[str, float],
) -> None:
    """Add to each record its share of the time and its cost.

    Args:
        paid: for the teachers before this start, by name of the trial.
    """
    cluster, seconds = plan.common.cluster, (time.monotonic() - begin) / max(1, len(records))
    rate = resources[1] * (cluster.gpu_hour_price or 0.0) + resources[0] * (cluster.cpu_hour_price or 0.0)
    for record in records:
        spec = trial_spec(plan, record)
        record.seconds += seconds
        record.teacher_seconds = sum(cost.seconds for cost in _teacher_costs(spec).teachers.values())
        if cluster.gpu_hour_price is not None or cluster.cpu_hour_price is not None:
            added = _teacher_money(spec) - paid[record.name]
            record.money = (record.money or 0.0) + seconds * rate / 3600 + added
        record.write(plan.home)


def _judge(plan: Plan, record: TrialRecord, reason: str) -> None:
    """Measure a trial's student, or record why there is none."""
    spec = trial_spec(plan, record)
    checkpoint = (Path(spec.results_dir) / "distill" / LATEST).resolve()
    try:
        if reason:
            raise RadioplatError(reason)
        record.metrics = judge(spec, checkpoint, Path(spec.results_dir), plan.space)
    except RadioplatError as error:
        record.state, record.reason = State.failed, str(error)
        note(f"{record.name}: {error}")
    else:
        record.state, record.student = State.done, str(checkpoint)
    record.write(plan.home)
