"""Ray Tune's schedulers and searchers as a search space file asks for them, and what ends a sweep."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune import Callback, Stopper
from ray.tune.schedulers import ASHAScheduler, MedianStoppingRule, PopulationBasedTraining, TrialScheduler
from ray.tune.search.optuna import OptunaSearch

from radioplat.tasks.tune.domains import Domain
from radioplat.tasks.tune.draw import define_by_run, encoded
from radioplat.tasks.tune.record import State, TrialRecord, read_trials
from radioplat.tasks.tune.space import SchedulerType
from radioplat.tasks.tune.sweep import Plan

_STEP = "step"
_NEVER = 10**9  # steps: ASHA ends no trial for having come far


def scheduler_of(plan: Plan) -> TrialScheduler | None:
    """Who compares trials while they run; with those of earlier starts and rounds, too."""
    asked = plan.space.scheduler
    common: dict[str, Any] = {"time_attr": _STEP, "metric": asked.metric, "mode": asked.mode.value}
    if asked.type is SchedulerType.asha:
        asha = ASHAScheduler(
            **common, max_t=_NEVER, grace_period=asked.grace_steps, reduction_factor=asked.reduction_factor
        )
        for trial, results in _earlier(plan):
            asha.on_trial_add(None, trial)
            for result in results:
                asha.on_trial_result(None, trial, result)
        return asha
    if asked.type is SchedulerType.median:
        median = MedianStoppingRule(**common, grace_period=asked.grace_steps, min_samples_required=2)
        for trial, results in _earlier(plan):
            for result in results:
                median.on_trial_complete(None, trial, result)
        return median
    if asked.type is SchedulerType.pbt:
        return PopulationBasedTraining(
            **common,
            perturbation_interval=asked.interval_steps,
            burn_in_period=asked.grace_steps,
            quantile_fraction=asked.quantile,
            resample_probability=asked.resample,
            hyperparam_mutations={"point": {"values": {d.path: _mutation(d) for d in plan.space.domains}}},
            log_config=False,
            require_attrs=False,  # a trial that failed has nothing to tell
        )
    return None


def _earlier(plan: Plan) -> Iterator[tuple[Any, list[dict[str, Any]]]]:
    """What trials that have ended told, each with a name that stands for it among Ray's trials."""
    for record in read_trials(plan.home):
        told = record.told(plan.home)
        if told and record.state in (State.done, State.stopped):
            yield (
                _Ended(f"earlier_{record.number}"),
                [{_STEP: step, plan.space.scheduler.metric: value} for step, value in told],
            )


@dataclass(frozen=True)
class _Ended:
    """Stands for a trial of Ray's that was there before."""

    trial_id: str


def _mutation(domain: Domain) -> Any:
    values = domain.values
    if domain.listed:
        return list(values)
    if domain.kind == "randint":
        return tune.randint(values[0], values[1] + 1)
    return {"uniform": tune.uniform, "loguniform": tune.loguniform, "quniform": tune.quniform}[domain.kind](*values)


class _Remembering(OptunaSearch):
    """Whose memory is the study's own file: Ray need not keep it."""

    def save(self, checkpoint_path: str) -> None:
        """Nothing to keep."""
        Path(checkpoint_path).touch()


def optuna_search(plan: Plan, unfinished: list[TrialRecord]) -> OptunaSearch:
    """TPE that remembers what earlier starts of the sweep found, and begins with what they left unfinished."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    backend = optuna.storages.journal.JournalFileBackend(str(plan.home / "optuna.log"))
    known = len(read_trials(plan.home))  # with one seed for all starts each would begin with the same values
    seed = plan.space.search.seed + 1000 * known
    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=max(4, plan.trials // 4))
    modes = plan.space.modes
    return _Remembering(
        define_by_run(plan.space, plan.value_of),
        metric=list(modes),
        mode=list(modes.values()),
        points_to_evaluate=[encoded(plan.space, record.values) for record in unfinished] or None,
        sampler=sampler,
        study_name=plan.home.parent.name,
        storage=optuna.storages.JournalStorage(backend),
    )


class Budget(Stopper):
    """Ends the sweep when its hours or its money, with those of earlier starts, are used up, or it was told to stop.

    Args:
        spent_s: seconds of earlier starts.
        told: a file that is there once it is to stop.

    Attributes:
        running: Ray's names of the trials that have a process.
    """

    def __init__(self, plan: Plan, spent_s: float, told: Path | None = None) -> None:
        self._plan, self._begin, self._told = plan, time.monotonic() - spent_s, told
        self._looked, self.over = 0.0, ""
        self.running: set[str] = set()
        self._awaited: set[str] | None = None  # of those, the ones that ran when it was told

    @property
    def told(self) -> bool:
        """Whether the sweep was told to stop: its trials save and end."""
        return self._told is not None and self._told.exists()

    @property
    def seconds(self) -> float:
        """Of all starts."""
        return time.monotonic() - self._begin

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """No trial is ended alone."""
        return False

    def stop_all(self) -> bool:
        """Whether it is used up; ``over`` then says what. Or whether all that were told to stop have ended."""
        if self.told:
            self._awaited = self.running.copy() if self._awaited is None else self._awaited & self.running
            return not self._awaited
        asked = self._plan.space.budget
        if asked.hours is not None and self.seconds > asked.hours * 3600:
            self.over = f"budget.hours={asked.hours:g}"
        if asked.money is not None and time.monotonic() - self._looked > 2:
            self._looked = time.monotonic()
            if sum(record.money or 0.0 for record in read_trials(self._plan.home)) >= asked.money:
                self.over = f"budget.money={asked.money:g}"
        return bool(self.over)


class Watch(Callback):
    """Writes down what only the driver sees: that a scheduler ended a trial, or that one failed for good."""

    def __init__(self, plan: Plan, start: str, budget: Budget) -> None:
        self._plan, self._start, self._budget = plan, start, budget

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """It has a process."""
        self._budget.running.add(trial.trial_id)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """A trial that ended before its task did was ended by the scheduler, or by the budget and goes on later."""
        self._budget.running.discard(trial.trial_id)
        if not self._budget.over and not self._budget.told:
            self._mark(trial.trial_id, State.stopped, "")

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Ray gives it up."""
        self._budget.running.discard(trial.trial_id)
        if self._budget.told:
            return
        error = trial.get_error() or RuntimeError("it failed")
        self._mark(trial.trial_id, State.failed, str(error).strip().splitlines()[-1])

    def _mark(self, trial_id: str, state: State, reason: str) -> None:
        for record in read_trials(self._plan.home):
            if record.owner == f"{self._start}/{trial_id}" and record.state is State.running:
                record.state, record.reason = state, reason
                record.write(self._plan.home)
