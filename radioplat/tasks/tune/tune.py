"""The task ``tune``: many trials of one spec on Ray Tune; a rerun continues where it stopped."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from radioplat.cluster.ray_cluster import attached, start_here, uses_ray
from radioplat.cluster.resources import teacher_gpus
from radioplat.common.sigterm import forwarding_sigterm, handling_sigterm, install_handler
from radioplat.common.terminal import note
from radioplat.errors import RadioplatError, Stopped
from radioplat.spec.loading.load import to_yaml
from radioplat.spec.resolved.teacher import ResolvedTeacher, frozen_teachers
from radioplat.spec.schema.cluster import ClusterMode
from radioplat.spec.schema.root import Spec
from radioplat.tasks.shared.interruption import stop_file
from radioplat.tasks.tune.draw import draw_values
from radioplat.tasks.tune.space import Algorithm, SchedulerType, TuneTask
from radioplat.tasks.tune.sweep import FOLDER, Plan, make_plan, nested, trial_spec
from radioplat.tasks.tune.sweep_files import BEST, write_files
from radioplat.tasks.tune.together import TOGETHER, why_apart
from radioplat.tasks.tune.trial_record import State, TrialRecord, read_trials
from radioplat.tracking.lease import Lease
from radioplat.tracking.results import TaskFolder, write_atomic
from radioplat.tracking.task_log import log_task

CLOCK = "clock.json"
# Loggers whose warnings need no action; Ray Tune warns of every trial that the scheduler or the budget ended early.
_QUIET = (
    "ray._private.authentication",
    "ray.tune.analysis.experiment_analysis",
    "ray.tune.search.optuna.optuna_search",
)


@dataclasses.dataclass(frozen=True)
class TuneReport:
    """Result of a sweep.

    Attributes:
        plan: the sweep: its folder ``home``, spec and search space.
        trials: all that have started, by number.
        seconds: over all starts of the sweep.
        over: the budget that was used up before all trials had run; empty if none was.
        best: the trial whose whole spec is ``best.yaml`` in ``plan.home``, beside ``report.html`` and ``pareto.png``;
            None, and no such files, if none has finished.
    """

    plan: Plan
    trials: list[TrialRecord]
    seconds: float
    over: str = ""
    best: TrialRecord | None = None

    @property
    def done(self) -> list[TrialRecord]:
        """The finished trials."""
        return [record for record in self.trials if record.state is State.done]


def tune(
    spec: str | Path | Mapping[str, Any] | Spec,
    overrides: Sequence[str] = (),
    *,
    space: str | Path | Mapping[str, Any],
    say: Callable[[str], None] = note,
) -> TuneReport:
    """Run many trials of one spec on Ray Tune; called again, it continues where it stopped.

    Args:
        spec: a YAML file, a mapping of sections, or a :class:`~radioplat.spec.schema.root.Spec`; it is not changed.
        overrides: ``key=value``, applied to it in order.
        space: the search space, a YAML file or a mapping: parameters, objectives, number of trials.
        say: called with each message for the user.

    Returns:
        A record for each trial, with its values, objectives and ``student``; ``done`` are the finished ones, and
        ``best`` is that of ``best.yaml``.

    Raises:
        SpecError: the spec or the space is wrong.
        RadioplatError: no trial finished.
        Stopped: on SIGTERM, after trials that train have saved; the same command continues.

    Example:
        >>> result = radioplat.tune("spec.yaml", space="space.yaml")
        >>> max(result.done, key=lambda trial: trial.metrics["knn"]).values
        {'train.optim.lr': 0.0014}
    """
    plan = make_plan(spec, overrides, space)
    folder = TaskFolder(plan.spec.results_dir, FOLDER)
    with handling_sigterm(), Lease(folder.path, say):
        return log_task(folder, FOLDER, to_yaml(plan.spec), lambda: _reported(plan, say), _kpi, ("sweep",))


def _reported(plan: Plan, say: Callable[[str], None]) -> TuneReport:
    """Run the sweep and write its files; W&B gets them once, not again from a sweep that was finished before."""
    before, written = read_trials(plan.home), (plan.home / BEST).exists()
    report = _run(plan, say)
    best = write_files(plan, report.trials, report.seconds, log=report.trials != before or not written)
    return dataclasses.replace(report, best=best)


def _run(plan: Plan, say: Callable[[str], None]) -> TuneReport:
    before = read_trials(plan.home)
    check_same_space(plan, before)
    plan.write()
    spent = 0.0
    with contextlib.suppress(OSError, ValueError):
        spent = float(json.loads((plan.home / CLOCK).read_text())["seconds"])
    finished = sum(record.state is not State.running for record in before)
    if before:
        say(f"{plan.home}: {finished} of {plan.trials} trials are done; {len(before) - finished} continue")
    if finished >= plan.trials:
        return TuneReport(plan, before, spent)
    with _cluster(plan) as gpus, _pools(plan, gpus):
        install_handler()
        over, seconds = _sweep(plan, gpus, spent, say)
    trials = read_trials(plan.home)
    for record in trials:
        if record.state is State.failed:
            say(f"{record.name} failed: {record.reason}")
    if over:
        say(f"{over} is used up; with a higher limit the same command continues")
    if not any(record.state is State.done for record in trials) and not over:
        raise RadioplatError("no trial finished", where=str(plan.home))
    return TuneReport(plan, trials, seconds, over)


def _sweep(plan: Plan, gpus: bool, spent: float, say: Callable[[str], None]) -> tuple[str, float]:
    """Run all trials in rounds; with a feature cache, the first trial runs alone and fills it."""
    population = plan.space.scheduler.type is SchedulerType.pbt
    apart = why_apart(plan)
    if plan.space.task is TuneTask.distill:
        say(f"each trial asks the teachers itself: {apart}" if apart else "trials learn from one pass of the teachers")
    alone = bool(apart) and plan.space.first_alone and plan.common.feature_cache.folder is not None and not population
    begin = time.monotonic()
    while True:
        known = read_trials(plan.home)
        unfinished = [record for record in known if record.state is State.running]
        remaining = plan.trials - len(known) + len(unfinished)
        if remaining <= 0:
            return "", spent + time.monotonic() - begin
        count = 1 if alone and not any(r.state is State.done for r in known) else remaining
        if over := _round(plan, gpus, unfinished, count, spent + time.monotonic() - begin):
            return over, spent + time.monotonic() - begin
        after = read_trials(plan.home)
        if sum(r.state is not State.running for r in after) == len(known) - len(unfinished):
            raise RadioplatError("no trial could be run", where=str(plan.home), hint="Ray's messages are above.")


def _round(plan: Plan, gpus: bool, unfinished: list[TrialRecord], count: int, spent: float) -> str:
    """Run ``count`` trials by one call of Ray Tune; return the budget that was used up, or an empty text."""
    from ray import tune as ray_tune
    from ray.tune import FailureConfig, RunConfig, TuneConfig

    from radioplat.tasks.tune.schedule import Budget, DriverCallback, optuna_search, scheduler_of
    from radioplat.tasks.tune.trial import run_trial

    start, space = secrets.token_hex(3), plan.space
    stop = stop_file(plan.home, start)
    budget = Budget(plan, spent, stop)
    per_trial = (space.resources.cpus, float(gpus) if space.resources.gpus is None else space.resources.gpus)
    inside = nested(trial_spec(plan, TrialRecord(0, {})))
    home = plan.home

    def trainable(config: dict[str, Any]) -> None:
        """Run one trial, as Ray Tune calls it."""
        run_trial(home, start, config, per_trial)

    search, param_space, samples, at_once = None, None, 1, space.concurrent
    cpus = per_trial[0]
    if space.search.algorithm is Algorithm.optuna:
        search, samples = optuna_search(plan, unfinished[:count]), count
    else:
        points = _numbered(plan, unfinished, count)
        param_space = {"point": ray_tune.grid_search(points)}
        if not why_apart(plan):
            # Without GPUs several passes would compute on the same cores: one has those of all.
            passes = space.concurrent if gpus else 1
            size = min(space.together, -(-len(points) // passes))
            groups = [points[first : first + size] for first in range(0, len(points), size)]
            param_space = {TOGETHER: ray_tune.grid_search(groups)}
            at_once, cpus = passes, cpus if gpus else cpus * min(space.concurrent, size)
    resources = {"CPU": 0.01} if inside else {"CPU": cpus, **({"GPU": per_trial[1]} if per_trial[1] else {})}
    tuner = ray_tune.Tuner(
        ray_tune.with_resources(trainable, resources),
        param_space=param_space,
        tune_config=TuneConfig(
            num_samples=samples,
            search_alg=search,
            scheduler=scheduler_of(plan),
            max_concurrent_trials=at_once,
        ),
        run_config=RunConfig(
            name=start,
            storage_path=str(home / "ray"),
            stop=budget,
            callbacks=[DriverCallback(plan, start, budget)],
            failure_config=FailureConfig(max_failures=space.max_failures),
            verbose=0,
        ),
    )
    try:
        with forwarding_sigterm(stop.touch):
            tuner.fit()
        if budget.stop_requested:
            raise Stopped
    except SystemExit as ended:  # raised by Ray on SIGTERM
        raise Stopped from ended
    finally:
        stop.unlink(missing_ok=True)
        write_atomic(home / CLOCK, json.dumps({"seconds": budget.seconds}))
    return budget.over


def _numbered(plan: Plan, unfinished: list[TrialRecord], count: int) -> list[dict[str, Any]]:
    """Return numbers and values of ``count`` trials, the unfinished ones first."""
    points = [{"number": r.number, "values": r.values} for r in unfinished[:count]]
    known = {record.number for record in read_trials(plan.home)}
    for number in range(plan.trials):
        if number not in known and len(points) < count:
            points.append({"number": number, "values": draw_values(plan.space, number, plan.value_of)})
    return points


def check_same_space(plan: Plan, before: list[TrialRecord]) -> None:
    """Refuse to mix trials of different spaces.

    Raises:
        RadioplatError: the earlier trials are of another space.
    """
    if not before:
        return
    known = Plan.read(plan.home).space
    names = ("task", "changes", "parameters", "objectives", "search")
    changed = [name for name in names if getattr(known, name) != getattr(plan.space, name)]
    if changed:
        hint = "Undo the change, or choose another results_dir."
        raise RadioplatError(f"its {len(before)} trials have another {changed[0]}", where=str(plan.home), hint=hint)


def _pooled(plan: Plan) -> list[ResolvedTeacher]:
    """Return the teachers whose pools the sweep starts."""
    if not plan.pooled:
        return []
    return [t for t in frozen_teachers(trial_spec(plan, TrialRecord(0, {}))) if t.service.pool]


@contextlib.contextmanager
def _cluster(plan: Plan) -> Iterator[bool]:
    """Join the running Ray cluster, or start one on this machine; yield whether it has GPUs."""
    import ray

    # Trials run in the user's working directory, to which paths of the spec are relative.
    os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.ERROR)
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
    # Ctrl-C must end the sweep; Ray Tune's handler would only end the current call.
    os.environ.setdefault("TUNE_DISABLE_SIGINT_HANDLER", "1")
    # During training a trial reports losses; Optuna's objectives come at its end.
    os.environ.setdefault("TUNE_DISABLE_STRICT_METRIC_CHECKING", "1")
    common = plan.common
    if ray.is_initialized() or common.cluster.address or _cluster_running(common):
        with attached(common.cluster.address) as gpus:
            yield gpus
        return
    inside = nested(trial_spec(plan, TrialRecord(0, {})))
    each = common.cluster.cpus_per_worker * common.worker_bounds[1] + 2 if inside else plan.space.resources.cpus
    teachers = sum(t.service.bounds[1] * t.service.num_cpus for t in _pooled(plan))
    # Without a dashboard Ray Train leaks resources of runs that are ended early.
    start_here(max(os.cpu_count() or 1, plan.space.concurrent * each + teachers), dashboard=inside)
    try:
        yield ray.cluster_resources().get("GPU", 0) > 0
    finally:
        ray.shutdown()


def _cluster_running(spec: Spec) -> bool:
    """Return whether there is a Ray cluster to join."""
    one = dataclasses.replace(spec.train, num_gpus=1, num_nodes=1, min_workers=None, max_workers=None)
    cluster = dataclasses.replace(spec.cluster, mode=ClusterMode.auto)
    return uses_ray(dataclasses.replace(spec, train=one, cluster=cluster))


@contextlib.contextmanager
def _pools(plan: Plan, gpus: bool) -> Iterator[None]:
    """Run one pool for each teacher during the block; pools of other runs are not stopped."""
    teachers = _pooled(plan)
    if not teachers:
        yield
        return
    from radioplat.teachers.serving.named_pools import pool_statuses, start_pools, stop_pools

    ran = {pool.name for pool in pool_statuses()} - {plan.pool}  # this sweep's may be left over from a killed start
    start_pools(teachers, {t.name: teacher_gpus(t.service.num_gpus, gpus) for t in teachers})
    try:
        yield
    finally:
        with contextlib.suppress(Exception):  # the cluster may have stopped, too
            stop_pools(sorted({t.service.pool for t in teachers if t.service.pool} - ran))


def _kpi(report: TuneReport) -> dict[str, float]:
    return {"trials": len(report.trials), "done": len(report.done), "seconds": report.seconds}
