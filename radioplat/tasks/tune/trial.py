"""One trial, in a process of Ray Tune: run the task, report its progress, measure the student."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import tempfile
import time
import uuid
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
from radioplat.tasks.shared.held_lease import retry_lease
from radioplat.tasks.shared.interruption import InterruptionWatch
from radioplat.tasks.tune.draw import decoded
from radioplat.tasks.tune.judge import judge
from radioplat.tasks.tune.space import Algorithm, SchedulerType, TuneTask
from radioplat.tasks.tune.sweep import Plan, trial_spec
from radioplat.tasks.tune.together import TOGETHER, run_together
from radioplat.tasks.tune.trial_log import log_trials
from radioplat.tasks.tune.trial_record import State, TrialRecord, claim
from radioplat.tracking.follow import CheckpointEvent, StepEvent
from radioplat.tracking.lease import LeaseTaken
from radioplat.tracking.status import read_status
from radioplat.tracking.teacher_cost import Prices, TeacherCosts
from radioplat.training.checkpoints.mirror import Mirror

POINTER = "checkpoint.json"  # goes through Ray in place of the weights, with their path


def run_trial(home: Path, start: str, config: dict[str, Any], resources: tuple[float, float]) -> None:
    """Run one trial; Ray Tune calls it. An interrupted trial continues; a finished one is only reported again.

    Args:
        start: name of this start of the sweep.
        config: ``{"point": {"number": ..., "values": {...}}}``, or Optuna's suggestion.
        resources: number of CPUs and GPUs of the trial, for its cost.
    """
    from ray import tune
    from ray.exceptions import RayActorError

    watch = InterruptionWatch(home, start)
    if watch.stop_requested:
        tune.report({"step": 0})
        return
    if TOGETHER in config:
        run_together(home, start, config[TOGETHER], resources, watch)
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
        tune.report(_final_report(plan, record))
        return
    if record.state is State.failed:
        tune.report({"trial": record.number, "step": record.step})
        return
    if plan.space.scheduler.type is SchedulerType.pbt:
        _clone(home, record, config["point"]["values"], tune.get_checkpoint())
    record.state, record.starts = State.running, record.starts + 1
    record.write(home)
    reporter = _Reporter(plan, record, resources)
    try:
        spec = trial_spec(plan, record)
        with watch.watching():
            checkpoint = retry_lease(lambda: _TASKS[plan.space.task](spec, reporter))
            record.metrics = judge(spec, checkpoint, Path(spec.results_dir), plan.space)
    except Stopped:
        reporter.settle()
        if watch.node_draining:  # Ray counts no failure and restarts the trial elsewhere; a normal exit would count
            raise RayActorError(error_msg="its node is drained, and it has saved", preempted=True) from None
        tune.report({"trial": record.number, "step": record.step})
        return
    except LeaseTaken as taken:
        raise RuntimeError(str(taken)) from None  # Ray Tune restarts the trial
    except RadioplatError as error:  # a restart would fail again, so it is not reported as a failure to Ray
        record.state, record.reason = State.failed, str(error)
        reporter.settle()
        note(f"{record.name}: {error}")
        tune.report({"trial": record.number, "step": record.step})
        return
    record.state, record.student = State.done, str(checkpoint)
    reporter.settle()
    log_trials([(spec, record)])
    pointer = _pointer(plan, record, checkpoint) if reporter.population else None
    tune.report(_final_report(plan, record), checkpoint=pointer)


def _clone(home: Path, record: TrialRecord, values: dict[str, Any], checkpoint: Any) -> None:
    """With PBT: start from another trial's checkpoint if Ray gives one, with the values that PBT chose."""
    if checkpoint is None:
        return
    with checkpoint.as_directory() as folder:
        source = json.loads((Path(folder) / POINTER).read_text())
    if source["number"] != record.number and [source["number"], source["step"]] not in record.clones:
        record.clones.append([source["number"], source["step"]])
        record.cloned_from, record.values = _lasting(Path(source["path"]), source["mirror"], home / record.name), values


def _lasting(checkpoint: Path, mirror: str | None, folder: Path) -> str:
    """Return the path of another trial's checkpoint that stays while this trial reads it.

    With a mirror (``train.checkpoint_dir``) the other trial removes its own copy at any time once the mirror has one:
    ``folder`` gets another, by hard links where the file system has them.
    """
    if mirror is None:
        return str(checkpoint)
    copied = folder / "copied" / uuid.uuid4().hex[:8] / checkpoint.name
    try:
        shutil.copytree(checkpoint, copied, copy_function=_link)
    except OSError:  # it has been removed
        shutil.rmtree(copied.parent, ignore_errors=True)
        return Mirror(mirror).find(checkpoint.name) or str(checkpoint)
    return str(copied)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # the file system has no hard links
        shutil.copy2(source, target)


def _pointer(plan: Plan, record: TrialRecord, path: Path) -> Any:
    """Return a Ray checkpoint with the path of radioplat's, which all machines can read, and of its mirror."""
    from ray.tune import Checkpoint

    folder = tempfile.mkdtemp(prefix="tune")
    place = trial_spec(plan, record).train.checkpoint_dir
    mirror = None if place is None else f"{place}/{path.parent.name}"
    pointer = {"number": record.number, "step": record.step, "path": str(path.resolve()), "mirror": mirror}
    (Path(folder) / POINTER).write_text(json.dumps(pointer))
    return Checkpoint.from_directory(folder)


class _Reporter:
    """Callback of a run: reports to Ray Tune every ``report_steps``; with PBT at each checkpoint."""

    def __init__(self, plan: Plan, record: TrialRecord, resources: tuple[float, float]) -> None:
        self._plan, self._record, self._resources = plan, record, resources
        self._losses: list[float] = []
        self._since = time.monotonic()
        self._folder: Path | None = None
        cluster = plan.common.cluster
        self._prices = Prices(cluster.gpu_hour_price, cluster.cpu_hour_price)
        self._teacher_money = 0.0  # of the run so far; its file counts all starts
        self.population = plan.space.scheduler.type is SchedulerType.pbt

    def __call__(self, event: StepEvent | CheckpointEvent) -> None:
        """Update the record after a step or a checkpoint, and report if due."""
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
        """Add the time and cost since the last call to the record, and save it."""
        record, now = self._record, time.monotonic()
        seconds, self._since = now - self._since, now
        record.seconds += seconds
        if self._losses:
            record.loss, self._losses = statistics.fmean(self._losses), []
        teacher_costs = TeacherCosts.read(self._folder) if self._folder else None
        added = 0.0
        if teacher_costs is not None:
            costs = teacher_costs.teachers.values()
            record.teacher_seconds = max(record.teacher_seconds, sum(cost.seconds for cost in costs))
            money = sum(teacher_costs.prices.of(cost) or 0.0 for cost in costs)
            added, self._teacher_money = money - self._teacher_money, money
        cpus, gpus = self._resources
        rate = gpus * (self._prices.gpu_hour or 0.0) + cpus * (self._prices.cpu_hour or 0.0)
        if self._prices != Prices():
            record.money = (record.money or 0.0) + seconds * rate / 3600 + added
        record.write(self._plan.home)

    def _report(self, checkpoint: Path | None) -> None:
        from ray import tune

        self.settle()
        report = {"loss": self._record.loss, "step": self._record.step, **self._validated()}
        report = {name: value for name, value in report.items() if value is not None}
        value = report.get(self._plan.space.scheduler.metric)
        if value is not None:
            self._record.add_report(self._plan.home, self._record.step, value)
            tune.report(report, checkpoint=_pointer(self._plan, self._record, checkpoint) if checkpoint else None)

    def _validated(self) -> dict[str, float]:
        """Return fidelity and knn of the run's last validation."""
        if self._plan.space.scheduler.metric == "loss" or self._folder is None:
            return {}
        for line in reversed(read_status(self._folder / "status.json")):
            kpi = {k: v for k, v in line["kpi"].items() if v is not None}
            values = [v for name, v in kpi.items() if name.startswith("fidelity/")]
            if values or "knn/top1" in kpi:
                fidelity = {"fidelity": statistics.fmean(values)} if values else {}
                return fidelity | ({"knn": kpi["knn/top1"]} if "knn/top1" in kpi else {})
        return {}


def _final_report(plan: Plan, record: TrialRecord) -> dict[str, Any]:
    """Return the last report: the objectives, and the scheduler's metric."""
    report = {"step": record.step + 1, "loss": record.loss, **record.metrics}
    report.setdefault(plan.space.scheduler.metric, record.loss)
    return {name: value for name, value in report.items() if value is not None} | {"trial": record.number}


_TASKS: dict[TuneTask, Callable[[Spec, Callable[..., Any]], Path]] = {
    TuneTask.distill: lambda spec, callback: distill(spec, callbacks=[callback], say=note).checkpoint,
    TuneTask.train: lambda spec, callback: train(spec, callbacks=[callback], say=note).checkpoint,
    TuneTask.quantize: lambda spec, callback: quantize(spec, callbacks=[callback]).student,
    TuneTask.prune: lambda spec, callback: prune(spec, say=note).path,
    TuneTask.low_rank: lambda spec, callback: low_rank(spec, say=note).path,
    TuneTask.compress: lambda spec, callback: compress(spec, say=note).student,
}
