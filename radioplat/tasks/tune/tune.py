"""The task ``tune``: many trials of one spec on Ray Tune; the same command goes on where it was."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from radioplat.cluster.ray_cluster import attached, uses_ray
from radioplat.cluster.resources import teacher_gpus
from radioplat.common.sigterm import forwarding_sigterm, handling_sigterm, install_handler
from radioplat.common.terminal import note
from radioplat.errors import RadioplatError, Stopped
from radioplat.spec.loading.load import to_yaml
from radioplat.spec.resolved.teacher import ResolvedTeacher, frozen_teachers
from radioplat.spec.schema.cluster import ClusterMode
from radioplat.spec.schema.root import Spec
from radioplat.tasks.tune.draw import drawn
from radioplat.tasks.tune.interruption import told_file
from radioplat.tasks.tune.record import State, TrialRecord, read_trials
from radioplat.tasks.tune.space import Algorithm, SchedulerType
from radioplat.tasks.tune.sweep import FOLDER, Plan, make_plan, nested, trial_spec
from radioplat.tracking.lease import Lease
from radioplat.tracking.results import TaskFolder, write_atomic
from radioplat.tracking.task_log import log_task

CLOCK = "clock.json"
# Warnings that no user can do anything about; Ray Tune's are of trials that a scheduler or the budget ended early.
_QUIET = (
    "ray._private.authentication",
    "ray.tune.analysis.experiment_analysis",
    "ray.tune.search.optuna.optuna_search",
)


@dataclass(frozen=True)
class TuneReport:
    """What a sweep came to.

    Attributes:
        trials: all that have begun, by number.
        over: the budget that was used up before all trials had run; empty where none was.
    """

    plan: Plan
    trials: list[TrialRecord]
    seconds: float
    over: str = ""

    @property
    def done(self) -> list[TrialRecord]:
        """Those that ran to the end."""
        return [record for record in self.trials if record.state is State.done]


def tune(
    spec: Spec | dict[str, Any] | str | Path,
    overrides: Sequence[str],
    space: str | Path | dict[str, Any],
    *,
    say: Callable[[str], None] = note,
) -> TuneReport:
    """Run the sweep of a search space file.

    Args:
        say: called with each line for the user.

    Raises:
        SpecError: the spec or the space is wrong.
        RadioplatError: no trial came to its end.
        Stopped: SIGTERM came, and trials that train have saved; the same command goes on.
    """
    plan = make_plan(spec, overrides, space)
    folder = TaskFolder(plan.spec.results_dir, FOLDER)
    with handling_sigterm(), Lease(folder.path, say):
        return log_task(folder, FOLDER, to_yaml(plan.spec), lambda: _run(plan, say), _kpi)


def _run(plan: Plan, say: Callable[[str], None]) -> TuneReport:
    before = read_trials(plan.home)
    _same_sweep(plan, before)
    plan.write()
    spent = _spent(plan)
    finished = sum(record.state is not State.running for record in before)
    if before:
        say(f"{plan.home}: {finished} of {plan.trials} trials are done; {len(before) - finished} go on")
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
        say(f"{over} is used up; with more, the same command goes on")
    if not any(record.state is State.done for record in trials) and not over:
        raise RadioplatError("no trial came to its end", where=str(plan.home))
    return TuneReport(plan, trials, seconds, over)


def _sweep(plan: Plan, gpus: bool, spent: float, say: Callable[[str], None]) -> tuple[str, float]:
    """Rounds of trials: the first alone where there is a cache to fill, then all others."""
    population = plan.space.scheduler.type is SchedulerType.pbt
    alone = plan.space.first_alone and plan.common.feature_cache.dir is not None and not population
    begin = time.monotonic()
    while True:
        known = read_trials(plan.home)
        unfinished = [record for record in known if record.state is State.running]
        left = plan.trials - len(known) + len(unfinished)
        if left <= 0:
            return "", spent + time.monotonic() - begin
        count = 1 if alone and not any(r.state is State.done for r in known) else left
        if over := _round(plan, gpus, unfinished, count, spent + time.monotonic() - begin):
            return over, spent + time.monotonic() - begin
        after = read_trials(plan.home)
        if sum(r.state is not State.running for r in after) == len(known) - len(unfinished):
            raise RadioplatError("no trial could be run", where=str(plan.home), hint="Ray's messages are above.")


def _round(plan: Plan, gpus: bool, unfinished: list[TrialRecord], count: int, spent: float) -> str:
    """One call of Ray Tune for ``count`` trials; gives the budget that was used up, or nothing."""
    from ray import tune as ray_tune
    from ray.tune import FailureConfig, RunConfig, TuneConfig

    from radioplat.tasks.tune.schedule import Budget, Watch, optuna_search, scheduler_of
    from radioplat.tasks.tune.trial import run_trial

    start, space = secrets.token_hex(3), plan.space
    told = told_file(plan.home, start)
    budget = Budget(plan, spent, told)
    held = (space.resources.cpus, _gpus(plan, gpus))
    inside = nested(trial_spec(plan, TrialRecord(0, {})))
    home = plan.home

    def trainable(config: dict[str, Any]) -> None:
        run_trial(home, start, config, held)

    resources = {"CPU": 0.01} if inside else {"CPU": held[0], **({"GPU": held[1]} if held[1] else {})}
    search, param_space, samples = None, None, 1
    if space.search.algorithm is Algorithm.optuna:
        search, samples = optuna_search(plan, unfinished[:count]), count
    else:
        param_space = _numbered(plan, unfinished, count)
    tuner = ray_tune.Tuner(
        ray_tune.with_resources(trainable, resources),
        param_space=param_space,
        tune_config=TuneConfig(
            num_samples=samples,
            search_alg=search,
            scheduler=scheduler_of(plan),
            max_concurrent_trials=space.concurrent,
        ),
        run_config=RunConfig(
            name=start,
            storage_path=str(home / "ray"),
            stop=budget,
            callbacks=[Watch(plan, start, budget)],
            failure_config=FailureConfig(max_failures=space.max_failures),
            verbose=0,
        ),
    )
    try:
        with forwarding_sigterm(told.touch):
            tuner.fit()
        if budget.told:
            raise Stopped
    except SystemExit as ended:  # Ray's own answer to SIGTERM
        raise Stopped from ended
    finally:
        told.unlink(missing_ok=True)
        write_atomic(home / CLOCK, json.dumps({"seconds": budget.seconds}))
    return budget.over


def _numbered(plan: Plan, unfinished: list[TrialRecord], count: int) -> dict[str, Any]:
    """Trials whose values follow from their numbers: what is unfinished first."""
    from ray import tune as ray_tune

    points = [{"number": r.number, "values": r.values} for r in unfinished[:count]]
    known = {record.number for record in read_trials(plan.home)}
    for number in range(plan.trials):
        if number not in known and len(points) < count:
            points.append({"number": number, "values": drawn(plan.space, number, plan.value_of)})
    return {"point": ray_tune.grid_search(points)}


def _same_sweep(plan: Plan, before: list[TrialRecord]) -> None:
    """Refuse to mix trials of different spaces.

    Raises:
        RadioplatError: what lies there is of another space.
    """
    if not before:
        return
    known = Plan.read(plan.home).space
    names = ("task", "changes", "parameters", "objectives")
    changed = [name for name in names if getattr(known, name) != getattr(plan.space, name)]
    if known.search != plan.space.search:
        changed.append("search")
    if changed:
        hint = "Undo the change, or choose another results_dir."
        raise RadioplatError(f"{len(before)} trials lie there of another {changed[0]}", where=str(plan.home), hint=hint)


def _spent(plan: Plan) -> float:
    with contextlib.suppress(OSError, ValueError):
        return float(json.loads((plan.home / CLOCK).read_text())["seconds"])
    return 0.0


def _gpus(plan: Plan, gpus: bool) -> float:
    asked = plan.space.resources.gpus
    return float(gpus) if asked is None else asked


def _pooled(plan: Plan) -> list[ResolvedTeacher]:
    """The teachers whose pools the sweep starts."""
    if not plan.pooled:
        return []
    return [t for t in frozen_teachers(trial_spec(plan, TrialRecord(0, {}))) if t.service.pool]


@contextlib.contextmanager
def _cluster(plan: Plan) -> Iterator[bool]:
    """Be in a cluster, the one that runs or one of our own; yields whether it has GPUs."""
    import ray

    # Trials keep to the folder where the user is, and paths of the spec begin there.
    os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.ERROR)
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
    # Ctrl-C ends the sweep; Ray Tune would only end its round, as if all trials had run.
    os.environ.setdefault("TUNE_DISABLE_SIGINT_HANDLER", "1")
    # While a trial trains it tells losses; Optuna's objectives come at its end.
    os.environ.setdefault("TUNE_DISABLE_STRICT_METRIC_CHECKING", "1")
    asked = plan.common
    if ray.is_initialized() or asked.cluster.address or _runs(asked):
        with attached(asked.cluster.address) as gpus:
            yield gpus
        return
    inside = nested(trial_spec(plan, TrialRecord(0, {})))
    each = asked.cluster.cpus_per_worker * asked.worker_bounds[1] + 2 if inside else plan.space.resources.cpus
    teachers = sum(t.service.bounds[1] * t.service.num_cpus for t in _pooled(plan))
    os.environ.setdefault("RAY_worker_niceness", "0")
    ray.init(
        num_cpus=math.ceil(max(os.cpu_count() or 1, plan.space.concurrent * each + teachers)),
        include_dashboard=inside,  # without it Ray Train leaks the places of runs that are ended early
        logging_level=logging.WARNING,
    )
    try:
        yield ray.cluster_resources().get("GPU", 0) > 0
    finally:
        ray.shutdown()


def _runs(spec: Spec) -> bool:
    """Whether a cluster is there to join."""
    import dataclasses

    one = dataclasses.replace(spec.train, num_gpus=1, num_nodes=1, min_workers=None, max_workers=None)
    cluster = dataclasses.replace(spec.cluster, mode=ClusterMode.auto)
    return uses_ray(dataclasses.replace(spec, train=one, cluster=cluster))


@contextlib.contextmanager
def _pools(plan: Plan, gpus: bool) -> Iterator[None]:
    """One pool for each teacher while the sweep goes on; those of other runs are left running."""
    teachers = _pooled(plan)
    if not teachers:
        yield
        return
    from radioplat.teachers.serving.named_pools import pool_statuses, start_pools, stop_pools

    ran = {pool.name for pool in pool_statuses()} - {plan.pool}  # ours may be left from a start that was killed
    start_pools(teachers, {t.name: teacher_gpus(t.service.num_gpus, gpus) for t in teachers})
    try:
        yield
    finally:
        with contextlib.suppress(Exception):  # the cluster may be gone with them
            stop_pools(sorted({t.service.pool for t in teachers if t.service.pool} - ran))


def _kpi(report: TuneReport) -> dict[str, float]:
    return {"trials": len(report.trials), "done": len(report.done), "seconds": report.seconds}
