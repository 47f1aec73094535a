"""Ray Tune's scheduler, searcher, stopper and callback of a sweep."""

from __future__ import annotations

import time
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune import Callback, Stopper
from ray.tune.schedulers import ASHAScheduler, MedianStoppingRule, PopulationBasedTraining, TrialScheduler
from ray.tune.search.optuna import OptunaSearch

from radioplat.tasks.tune.domains import Domain
from radioplat.tasks.tune.draw import define_by_run, encoded
from radioplat.tasks.tune.space import SchedulerType
from radioplat.tasks.tune.sweep import Plan
from radioplat.tasks.tune.trial_record import State, TrialRecord, read_trials

_STEP = "step"
_EndedTrial = namedtuple("_EndedTrial", ["trial_id"])  # stands in for Ray's trial
_MAX_STEPS = 10**9  # more than any trial has, so that ASHA ends none by its length


def scheduler_of(plan: Plan) -> TrialScheduler | None:
    """Return the scheduler, which compares trials while they run, also with those of earlier starts and rounds."""
    config = plan.space.scheduler
    common: dict[str, Any] = {"time_attr": _STEP, "metric": config.metric, "mode": config.mode.value}
    if config.type is SchedulerType.asha:
        asha = ASHAScheduler(
            **common, max_t=_MAX_STEPS, grace_period=config.grace_steps, reduction_factor=config.reduction_factor
        )
        for trial, results in _earlier(plan):
            asha.on_trial_add(None, trial)
            for result in results:
                asha.on_trial_result(None, trial, result)
        return asha
    if config.type is SchedulerType.median:
        median = MedianStoppingRule(**common, grace_period=config.grace_steps, min_samples_required=2)
        for trial, results in _earlier(plan):
            for result in results:
                median.on_trial_complete(None, trial, result)
        return median
    if config.type is SchedulerType.pbt:
        return PopulationBasedTraining(
            **common,
            perturbation_interval=config.interval_steps,
            burn_in_period=config.grace_steps,
            quantile_fraction=config.quantile,
            resample_probability=config.resample,
            hyperparam_mutations={"point": {"values": {d.path: _mutation(d) for d in plan.space.domains}}},
            log_config=False,
            require_attrs=False,  # a failed trial reports no metric
        )
    return None


def _earlier(plan: Plan) -> Iterator[tuple[Any, list[dict[str, Any]]]]:
    """Yield the trials that have ended, each as a stand-in for Ray's trial with its reports."""
    for record in read_trials(plan.home):
        reports = record.reports(plan.home)
        if reports and record.state in (State.done, State.stopped):
            results = [{_STEP: step, plan.space.scheduler.metric: value} for step, value in reports]
            yield _EndedTrial(f"earlier_{record.number}"), results


def _mutation(domain: Domain) -> Any:
    values = domain.values
    if domain.listed:
        return list(values)
    if domain.kind == "randint":
        return tune.randint(values[0], values[1] + 1)
    return {"uniform": tune.uniform, "loguniform": tune.loguniform, "quniform": tune.quniform}[domain.kind](*values)


class _StoredSearch(OptunaSearch):
    """Optuna's search with the study in a file, so that Ray need not save its state."""

    def save(self, checkpoint_path: str) -> None:
        """Write an empty file in place of the state."""
        Path(checkpoint_path).touch()


def optuna_search(plan: Plan, unfinished: list[TrialRecord]) -> OptunaSearch:
    """Return TPE with the trials of earlier starts; it suggests the unfinished ones first."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    backend = optuna.storages.journal.JournalFileBackend(str(plan.home / "optuna.log"))
    known = len(read_trials(plan.home))  # part of the seed: each start must suggest other values
    seed = plan.space.search.seed + 1000 * known
    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=max(4, plan.trials // 4))
    modes = plan.space.modes
    return _StoredSearch(
        define_by_run(plan.space, plan.value_of),
        metric=list(modes),
        mode=list(modes.values()),
        points_to_evaluate=[encoded(plan.space, record.values) for record in unfinished] or None,
        sampler=sampler,
        study_name=plan.home.parent.name,
        storage=optuna.storages.JournalStorage(backend),
    )


class Budget(Stopper):
    """Ends the sweep when its hours or its money, including earlier starts, are used up, or when a stop is requested.

    Args:
        spent_s: seconds of earlier starts.
        stop_file: a file that exists once the sweep shall stop.

    Attributes:
        over: the budget that is used up; empty if none is.
        running: Ray's names of the trials that have a process.
    """

    def __init__(self, plan: Plan, spent_s: float, stop_file: Path | None = None) -> None:
        self._plan, self._begin, self._stop_file = plan, time.monotonic() - spent_s, stop_file
        self._checked, self.over = 0.0, ""
        self.running: set[str] = set()
        self._awaited: set[str] | None = None  # trials that ran when the stop was requested, and still run

    @property
    def stop_requested(self) -> bool:
        """Whether the sweep shall stop: its trials save and end."""
        return self._stop_file is not None and self._stop_file.exists()

    @property
    def seconds(self) -> float:
        """Duration of all starts."""
        return time.monotonic() - self._begin

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Return False: no single trial is stopped."""
        return False

    def stop_all(self) -> bool:
        """Return whether a budget is used up, or all trials have ended after a requested stop."""
        if self.stop_requested:
            self._awaited = self.running.copy() if self._awaited is None else self._awaited & self.running
            return not self._awaited
        limits = self._plan.space.budget
        if limits.hours is not None and self.seconds > limits.hours * 3600:
            self.over = f"budget.hours={limits.hours:g}"
        if limits.money is not None and time.monotonic() - self._checked > 2:
            self._checked = time.monotonic()
            if sum(record.money or 0.0 for record in read_trials(self._plan.home)) >= limits.money:
                self.over = f"budget.money={limits.money:g}"
        return bool(self.over)


class DriverCallback(Callback):
    """Records what only the driver knows: trials that the scheduler stopped, or that failed for good."""

    def __init__(self, plan: Plan, start: str, budget: Budget) -> None:
        self._plan, self._start, self._budget = plan, start, budget

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """The trial's process starts."""
        self._budget.running.add(trial.trial_id)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """The trial ended; if it is unfinished, by the scheduler, or by the budget and it continues later."""
        self._budget.running.discard(trial.trial_id)
        if not self._budget.over and not self._budget.stop_requested:
            self._mark(trial.trial_id, State.stopped, "")

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """The trial failed more often than Ray restarts it."""
        self._budget.running.discard(trial.trial_id)
        if self._budget.stop_requested:
            return
        error = trial.get_error() or RuntimeError("it failed")
        self._mark(trial.trial_id, State.failed, str(error).strip().splitlines()[-1])

    def _mark(self, trial_id: str, state: State, reason: str) -> None:
        owner = f"{self._start}/{trial_id}"
        for record in read_trials(self._plan.home):
            of_it = owner in (record.owner, record.owner.rpartition("/")[0])  # the latter: of trials of one pass
            if of_it and record.state is State.running:
                record.state, record.reason = state, reason
                record.write(self._plan.home)
