"""Search space file: the fields that vary, the objectives, the scheduler and the budget."""

from __future__ import annotations

import dataclasses
import os
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from radioplat.common.imports import missing_extra
from radioplat.errors import Problem, SpecError
from radioplat.spec.import_paths import IMPORT_PATH
from radioplat.spec.loading.fields import faults, first_line
from radioplat.spec.ranges import number, range_problems
from radioplat.spec.schema.evaluate import MetricName
from radioplat.tasks.tune.domains import Domain, read_domain


class TuneTask(str, Enum):
    """Tasks that a trial can run."""

    distill = "distill"
    train = "train"
    prune = "prune"
    low_rank = "low_rank"
    quantize = "quantize"
    compress = "compress"


# Objectives: metrics and costs of a trial's student.
MEASURED = tuple(metric.value for metric in MetricName if metric is not MetricName.mAP)
COSTS = {
    "latency": "seconds of an engine for one image, on the machine that ran the trial",
    "macs": "multiply-accumulates of one image",
    "params": "of the backbone",
    "bytes": "of the backbone's weights in their number formats",
}


class Better(str, Enum):
    """Whether higher or lower values are better."""

    max = "max"
    min = "min"


class Algorithm(str, Enum):
    """Search algorithms."""

    random = "random"
    grid = "grid"
    optuna = "optuna"  # TPE, also with several objectives


class SchedulerType(str, Enum):
    """Schedulers: they stop trials early, or copy weights between them (PBT)."""

    none = "none"
    asha = "asha"
    median = "median"
    pbt = "pbt"


@dataclass
class Objective:
    """One objective."""

    metric: str = "???"  # of MEASURED or COSTS, or a user's own metric by import path
    mode: Better = Better.max


@dataclass
class SearchConfig:
    """Settings of the search."""

    algorithm: Algorithm = Algorithm.random
    seed: int = 0


@dataclass
class SchedulerConfig:
    """Settings of the scheduler; steps are optimizer steps of a trial."""

    type: SchedulerType = SchedulerType.none
    metric: str = "loss"  # loss; with validation also fidelity, knn
    mode: Better = Better.min
    grace_steps: int = number(20, above=0)  # no trial is stopped before
    reduction_factor: int = number(3, at_least=2)  # asha: one of this many trials continues
    interval_steps: int = number(20, above=0)  # pbt: steps between comparisons; each writes a checkpoint
    quantile: float = number(0.25, above=0, at_most=0.5)  # pbt: share of trials that copy the best ones
    resample: float = 0.25  # pbt: probability of a new value instead of a neighbour of the old one
    report_steps: int = number(10, above=0)


@dataclass
class BudgetConfig:
    """Limits of the sweep; interrupted trials continue when it is started again with higher ones."""

    trials: int | None = number(None, above=0)  # default of a grid: all points
    hours: float | None = number(None, above=0)  # of all starts
    money: float | None = number(None, above=0)  # at cluster.gpu_hour_price and cluster.cpu_hour_price


@dataclass
class TrialResources:
    """Resources of a trial that is not a Ray run itself."""

    cpus: float = 1.0
    gpus: float | None = None  # default: 1 if the cluster has GPUs


class SharePass(str, Enum):
    """Whether trials that differ in the student alone learn from one pass of the teachers."""

    auto = "auto"
    never = "never"


@dataclass
class TuneSpace:
    """A search space file."""

    task: TuneTask = TuneTask.distill
    changes: list[str] = field(default_factory=list)  # overrides for trials, not for the final spec
    parameters: dict[str, Any] = field(default_factory=dict)
    objectives: list[Objective] = field(default_factory=list)
    search: SearchConfig = field(default_factory=SearchConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    concurrent: int = number(2, above=0)
    resources: TrialResources = field(default_factory=TrialResources)
    max_failures: int = 3  # restarts of one trial, each from its last checkpoint
    share_teachers: bool = True  # one pool of teachers for all trials
    # trials that differ in the student alone learn from one pass of the teachers
    share_pass: SharePass = SharePass.auto
    together: int = number(8, above=0)  # most trials of one pass
    first_alone: bool = True  # with a feature cache: the first trial fills it before others start

    @property
    def domains(self) -> list[Domain]:
        """The parameters, in the order of the file."""
        domains = [read_domain(path, entry) for path, entry in self.parameters.items()]
        return [domain for domain in domains if isinstance(domain, Domain)]

    @property
    def modes(self) -> dict[str, str]:
        """``max`` or ``min`` by metric, in the order of the file."""
        return {o.metric.rpartition(":")[2]: o.mode.value for o in self.objectives}

    @property
    def own_metrics(self) -> list[MetricName]:
        """The user's own metrics among the objectives."""
        return [MetricName(o.metric) for o in self.objectives if IMPORT_PATH.fullmatch(o.metric)]


def load_space(source: str | Path | Mapping[str, Any]) -> TuneSpace:
    """Read a search space; all problems are reported at once.

    Raises:
        SpecError: it cannot be read, has unknown or mistyped fields, or contradicts itself.
    """
    if not isinstance(source, (str, os.PathLike, Mapping)):
        hint = "Give the path of a YAML file, or a mapping."
        raise SpecError(f"this is a {type(source).__name__}, not a search space", where="space", hint=hint)
    name, tree = ("", dict(source)) if isinstance(source, Mapping) else (str(source), _read(Path(source)))
    entries = tree.get("parameters")
    if isinstance(entries, dict):
        choices = {str(p): {"choice": entry} if isinstance(entry, list) else entry for p, entry in entries.items()}
        tree = {**tree, "parameters": choices}
    problems = list(faults(tree, TuneSpace, "", TuneSpace))
    if not problems:
        try:
            merged = OmegaConf.merge(OmegaConf.structured(TuneSpace), tree)
            space = typing.cast(TuneSpace, OmegaConf.to_object(merged))
        except OmegaConfBaseException as error:
            raise SpecError(first_line(error), where=name) from None
        problems = list(_problems(space))
    if problems:
        raise SpecError(*(dataclasses.replace(p, where=f"{name}: {p.where}" if name else p.where) for p in problems))
    return space


def _read(path: Path) -> dict[str, Any]:
    try:
        tree = OmegaConf.to_container(OmegaConf.create(path.read_text(encoding="utf-8")))
    except OSError as error:
        hint = "Name an existing YAML file; tune_spaces/ has some."
        raise SpecError(f"cannot read the search space: {error.strerror}", where=str(path), hint=hint) from None
    except (yaml.YAMLError, OmegaConfBaseException, UnicodeDecodeError):
        raise SpecError("not valid YAML", where=str(path)) from None
    if not isinstance(tree, dict):
        raise SpecError("the top level must be a mapping", where=str(path))
    return typing.cast("dict[str, Any]", tree)


def _problems(space: TuneSpace) -> Iterator[Problem]:
    if not space.parameters:
        hint = "For example parameters: {train.optim.lr: {loguniform: [1e-4, 1e-2]}}."
        yield Problem("no field varies", "parameters", hint)
    earlier: list[str] = []
    for path, entry in space.parameters.items():
        domain = read_domain(path, entry)
        if isinstance(domain, list):
            yield from domain
        elif late := [other for other in domain.when if other in space.parameters and other not in earlier]:
            yield Problem(f"{late[0]} must be listed before fields that depend on it", f"parameters.{path}.when")
        earlier.append(path)
    if not space.objectives:
        yield Problem("no objective is given", "objectives", "For example objectives: [{metric: fidelity, mode: max}].")
    for i, objective in enumerate(space.objectives):
        module, _, name = objective.metric.rpartition(":")
        known = name in (*MEASURED, *COSTS)
        if module and known:
            message = f"radioplat has a metric of the name {name!r}"
            yield Problem(message, f"objectives[{i}].metric", "Give yours another name.")
        elif not known and not IMPORT_PATH.fullmatch(objective.metric):
            hint = f"One of {', '.join((*MEASURED, *COSTS))}, or your own as package.module:name."
            yield Problem(f"{objective.metric!r} is not known", f"objectives[{i}].metric", hint)
        elif objective.metric == "latency":
            yield from missing_extra("onnx", "latency, of an engine,", f"objectives[{i}].metric")
    if len(space.modes) < len(space.objectives):
        yield Problem("a metric is named twice", "objectives")
    yield from range_problems(space)
    if space.budget.trials is None and space.search.algorithm is not Algorithm.grid:
        yield Problem("the number of trials is needed", "budget.trials", "Only a grid has a default.")
    if space.search.algorithm is Algorithm.optuna:
        yield from missing_extra("tune", "algorithm optuna", "search.algorithm", instead="Or use random.")
    yield from _scheduler_problems(space)


def _scheduler_problems(space: TuneSpace) -> Iterator[Problem]:
    kind = space.scheduler.type
    trains = (TuneTask.distill, TuneTask.train)
    if kind in (SchedulerType.asha, SchedulerType.median) and space.task not in (*trains, TuneTask.quantize):
        yield Problem(f"{space.task.value} reports nothing while it runs", "scheduler.type", "Use none.")
    if kind is not SchedulerType.pbt:
        return
    if space.task not in trains:
        yield Problem(f"{space.task.value} cannot copy weights from another trial", "scheduler.type", "Use none.")
    if space.search.algorithm is not Algorithm.random:
        yield Problem("pbt chooses values itself", "search.algorithm", "Use random, which draws the first values.")
    if (space.budget.trials or 2) < 2:
        yield Problem("a population has at least two", "budget.trials")
    for domain in space.domains:
        if not _may_change(domain.path):
            hint = "train.optim.*, loss weights and teachers' weights may; use another scheduler for the rest."
            yield Problem("this field cannot change during a run", f"parameters.{domain.path}", hint)
        if domain.when:
            yield Problem("pbt does not support conditions", f"parameters.{domain.path}.when")


def _may_change(path: str) -> bool:
    last = path.rpartition(".")[2]
    fixed = ("optim", "policy", "warmup_epochs", "sched_on_updates", "skip_names")
    if path.startswith("train.optim."):
        return last not in fixed
    return path in ("train.clip_grad_norm", "train.damp", "train.regularizer.weight") or (
        path.startswith("distill.") and last.endswith(("lambda", "weight", "alpha", "temperature"))
    )
