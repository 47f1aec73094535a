"""One trial, inside the process that Ray Tune gives it: the task, what is told meanwhile, the student judged."""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from radioplat.common.terminal import note
from radioplat.errors import RadioplatError, Stopped
from radioplat.spec.schema.root import Spec
from radioplat.tasks.compress.compress import compress
from radioplat.tasks.distill.distill import distill, train
from radioplat.tasks.low_rank.low_rank import low_rank
from radioplat.tasks.prune.prune import prune
from radioplat.tasks.quantize.quantize import quantize
from radioplat.tasks.tune.draw import decoded
from radioplat.tasks.tune.interruption import Lookout
from radioplat.tasks.tune.judge import judge
from radioplat.tasks.tune.record import State, TrialRecord, claim
from radioplat.tasks.tune.space import Algorithm, SchedulerType, TuneTask
from radioplat.tasks.tune.sweep import Plan, trial_spec
from radioplat.tracking.follow import CheckpointEvent, StepEvent
from radioplat.tracking.lease import LeaseTaken
from radioplat.tracking.status import read_status
from radioplat.tracking.teacher_cost import Prices, TeacherCosts
from radioplat.tracking.weights_and_biases.session import WandbRun, end_service

POINTER = "checkpoint.json"  # what travels through Ray in place of weights: where they lie
_PATIENCE_S = 60.0


def run_trial(home: Path, start: str, config: dict[str, Any], price_of: tuple[float, float]) -> None:
    """Ray Tune's function. What is done already is not done again; a trial that was cut off goes on.

    Args:
        start: name of this start of the sweep.
        config: ``{"point": {"number": ..., "values": {...}}}``, or what Optuna chose.
        price_of: CPUs and GPUs that the trial holds.
    """
    from ray import tune

    lookout = Lookout(home, start)
    if lookout.told:
        tune.report({"step": 0})
        return
    plan = Plan.read(home)
    os.chdir(plan.cwd if Path(plan.cwd).is_dir() else home)
    owner = f"{start}/{tune.get_context().get_trial_id()}"
    if plan.space.search.algorithm is Algorithm.optuna:
        record = claim(home, decoded(plan.space, config), owner)
    else:
        point = config["point"]
        record = claim(home, point["values"], owner, point["number"])
    if record.state is State.done:
        tune.report(_told(plan, record))
        return
    if record.state is State.failed:
        tune.report({"trial": record.number, "step": record.step})
        return
    if plan.space.scheduler.type is SchedulerType.pbt:
        _take_over(record, config["point"]["values"], tune.get_checkpoint())
    record.state, record.starts = State.running, record.starts + 1
    record.write(home)
    reporter = _Reporter(plan, record, price_of)
    try:
        spec = trial_spec(plan, record)
        with lookout.heeded():
            checkpoint = _when_free(lambda: _TASKS[plan.space.task](spec, reporter))
            record.metrics = judge(spec, checkpoint, Path(spec.results_dir), plan.space)
    except Stopped:
        reporter.settle()
        if lookout.going:
            lookout.lose_node()
        tune.report({"trial": record.number, "step": record.step})
        return
    except RadioplatError as error:  # another start would only meet it again, so Ray hears of no failure
        record.state, record.reason = State.failed, str(error)
        reporter.settle()
        note(f"{record.name}: {error}")
        tune.report({"trial": record.number, "step": record.step})
        return
    record.state, record.student = State.done, str(checkpoint)
    reporter.settle()
    _tell_wandb(spec, record)
    tune.report(_told(plan, record), checkpoint=_pointer(record, checkpoint) if reporter.population else None)


def _when_free(action: Callable[[], Path]) -> Path:
    """``action``; where an earlier process of this trial has not gone yet, after it has."""
    until = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return action()
        except LeaseTaken as taken:
            if time.monotonic() > until:
                raise RuntimeError(str(taken)) from None  # which Ray Tune tries again
        time.sleep(1)


def _take_over(record: TrialRecord, values: dict[str, Any], found: Any) -> None:
    """With PBT: begin from another trial's checkpoint where Ray says so, with the values that it chose."""
    if found is None:
        return
    with found.as_directory() as folder:
        said = json.loads((Path(folder) / POINTER).read_text())
    if said["number"] != record.number and [said["number"], said["step"]] not in record.clones:
        record.clones.append([said["number"], said["step"]])
        record.cloned_from, record.values = said["path"], values


def _pointer(record: TrialRecord, path: Path) -> Any:
    """A checkpoint of Ray's that names ours; results_dir is one place for all machines."""
    from ray.tune import Checkpoint

    folder = tempfile.mkdtemp(prefix="tune")
    said = {"number": record.number, "step": record.step, "path": str(path.resolve())}
    (Path(folder) / POINTER).write_text(json.dumps(said))
    return Checkpoint.from_directory(folder)


class _Reporter:
    """Callback of a run: tells Ray Tune how it goes, every ``report_steps``; with PBT at each checkpoint."""

    def __init__(self, plan: Plan, record: TrialRecord, held: tuple[float, float]) -> None:
        self._plan, self._record, self._held = plan, record, held
        self._losses: list[float] = []
        self._since = time.monotonic()
        self._folder: Path | None = None
        cluster = plan.common.cluster
        self._prices = Prices(cluster.gpu_hour_price, cluster.cpu_hour_price)
        self._teachers = (0.0, 0.0)  # seconds and money of the run so far, which its own file counts over all starts
        self.population = plan.space.scheduler.type is SchedulerType.pbt

    def __call__(self, event: StepEvent | CheckpointEvent) -> None:
        """A step was done, or a checkpoint written."""
        record = self._record
        if isinstance(event, StepEvent):
            record.step, record.steps = event.step, event.max_step
            loss = event.metrics.get("loss")
            self._losses += [] if loss is None else [loss]
            due = event.step % self._plan.space.scheduler.report_steps == 0
            if due and not self.population and event.step < event.max_step:
                self._report(None)
        else:
            self._folder = event.path.parent
            if self.population and event.step < record.steps:
                record.step = event.step
                self._report(event.path)

    def settle(self) -> None:
        """Count the time since the last call, and save the record."""
        record, now = self._record, time.monotonic()
        seconds, self._since = now - self._since, now
        record.seconds += seconds
        if self._losses:
            record.loss, self._losses = statistics.fmean(self._losses), []
        teacher_costs = TeacherCosts.read(self._folder) if self._folder else None
        if teacher_costs is not None:
            costs = teacher_costs.teachers.values()
            ours = (sum(c.seconds for c in costs), sum(teacher_costs.prices.of(c) or 0.0 for c in costs))
            record.teacher_seconds = max(record.teacher_seconds, ours[0])
            more, self._teachers = ours[1] - self._teachers[1], ours
        else:
            more = 0.0
        cpus, gpus = self._held
        rate = gpus * (self._prices.gpu_hour or 0.0) + cpus * (self._prices.cpu_hour or 0.0)
        if self._prices != Prices():
            record.money = (record.money or 0.0) + seconds * rate / 3600 + more
        record.write(self._plan.home)

    def _report(self, checkpoint: Path | None) -> None:
        from ray import tune

        self.settle()
        told = {"loss": self._record.loss, "step": self._record.step, **self._validated()}
        told = {name: value for name, value in told.items() if value is not None}
        value = told.get(self._plan.space.scheduler.metric)
        if value is not None:
            self._record.tell(self._plan.home, self._record.step, value)
            tune.report(told, checkpoint=_pointer(self._record, checkpoint) if checkpoint else None)

    def _validated(self) -> dict[str, float]:
        """fidelity and knn of the last validation of the run."""
        if self._plan.space.scheduler.metric == "loss" or self._folder is None:
            return {}
        for line in reversed(read_status(self._folder / "status.json")):
            kpi = {k: v for k, v in line["kpi"].items() if v is not None}
            values = [v for name, v in kpi.items() if name.startswith("fidelity/")]
            if values or "knn/top1" in kpi:
                found = {"fidelity": statistics.fmean(values)} if values else {}
                return found | ({"knn": kpi["knn/top1"]} if "knn/top1" in kpi else {})
        return {}


def _told(plan: Plan, record: TrialRecord) -> dict[str, Any]:
    """The last report: the objectives, and what the scheduler looks at."""
    found = {"step": record.step + 1, "loss": record.loss, **record.metrics}
    found.setdefault(plan.space.scheduler.metric, record.loss)
    return {name: value for name, value in found.items() if value is not None} | {"trial": record.number}


def _tell_wandb(spec: Spec, record: TrialRecord) -> None:
    """The objectives, in the trial's W&B run."""
    if spec.wandb.enable:
        values = {"trial": record.number, **record.values}
        with WandbRun(spec.wandb, spec.results_dir, values, job_type="trial") as run:
            run.log(record.step, {f"objective/{name}": value for name, value in record.metrics.items()})
        end_service(spec.wandb.finish_s)  # Ray kills it before this process ends


def _quantize(spec: Spec, callback: Callable[..., Any]) -> Path:
    report = quantize(spec, callbacks=[callback])
    return report.result


_TASKS: dict[TuneTask, Callable[[Spec, Callable[..., Any]], Path]] = {
    TuneTask.distill: lambda spec, callback: distill(spec, callbacks=[callback], say=note).checkpoint,
    TuneTask.train: lambda spec, callback: train(spec, callbacks=[callback], say=note).checkpoint,
    TuneTask.quantize: _quantize,
    TuneTask.prune: lambda spec, callback: prune(spec, say=note).path,
    TuneTask.low_rank: lambda spec, callback: low_rank(spec, say=note).path,
    TuneTask.compress: lambda spec, callback: compress(spec, say=note).student,
}
