"""The plan of a sweep: spec and search space of all trials, and the spec of one of them."""

from __future__ import annotations

import copy
import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from omegaconf import OmegaConf

from radioplat.cluster.ray_cluster import uses_ray
from radioplat.errors import Problem, SpecError
from radioplat.spec.checks.tasks.low_rank import low_rank_problems
from radioplat.spec.checks.tasks.prune import prune_problems
from radioplat.spec.checks.tasks.quantize import quantize_problems
from radioplat.spec.checks.tasks.training_run import check
from radioplat.spec.loading.load import load_spec, to_yaml
from radioplat.spec.resolved.teacher import frozen_teachers
from radioplat.spec.schema.cluster import ClusterMode, Placement
from radioplat.spec.schema.quantize import QuantizeMode
from radioplat.spec.schema.root import Spec
from radioplat.tasks.compress.groups import compress_problems
from radioplat.tasks.shared.find_checkpoint import find_checkpoint
from radioplat.tasks.tune.draw import ValueOf, grid
from radioplat.tasks.tune.space import SchedulerType, TuneSpace, TuneTask, load_space
from radioplat.tasks.tune.trial_record import TrialRecord
from radioplat.tracking.results import write_atomic

FILE, FOLDER = "plan.json", "tune"
_CHECKS = {
    TuneTask.prune: prune_problems,
    TuneTask.low_rank: low_rank_problems,
    TuneTask.quantize: quantize_problems,
    TuneTask.compress: compress_problems,
}
# Prefixes of fields that change a teacher's features, so that trials cannot share a pool.
_TEACHER_FIELDS = ("distill.teacher", "dataset.img_size", "dataset.batch_size", "dataset.augmentation", "teachers.")


@dataclass(frozen=True)
class Plan:
    """A sweep.

    Attributes:
        home: ``results_dir/tune``, absolute.
        spec: the user's, without the space's ``changes``.
        cwd: folder of the spec's relative paths.
    """

    home: Path
    spec: Spec
    space: TuneSpace
    cwd: str = ""

    @property
    def name(self) -> str:
        """Name of the sweep and of its W&B group."""
        return self.spec.wandb.group or self._unique_name

    @property
    def pool(self) -> str:
        """Name of this sweep's teacher pool, different from those of other sweeps in its W&B group."""
        return f"tune-{self._unique_name}"

    @property
    def _unique_name(self) -> str:
        return f"{self.home.parent.name}-{hashlib.sha256(str(self.home).encode()).hexdigest()[:6]}"

    @functools.cached_property
    def common(self) -> Spec:
        """The spec with the changes of all trials; must not be modified."""
        return load_spec(self.spec, self.space.changes)

    @property
    def value_of(self) -> ValueOf:
        """Returns a field's value in the common spec."""
        tree = OmegaConf.structured(self.common)
        return lambda path: OmegaConf.select(tree, path)

    @property
    def trials(self) -> int:
        """Number of trials to run."""
        return self.space.budget.trials or len(grid(self.space, self.value_of))

    @property
    def pooled(self) -> bool:
        """Whether the sweep starts a pool for each teacher that all trials share."""
        common = self.common
        varies = any(path.startswith(_TEACHER_FIELDS) for path in self.space.parameters)
        inline = all(t.service.placement is Placement.inline for t in frozen_teachers(common))
        return self.space.share_teachers and bool(frozen_teachers(common)) and not varies and not inline

    def write(self) -> None:
        """Save it for the trials, which may run on other machines."""
        space = OmegaConf.to_container(OmegaConf.structured(self.space), enum_to_str=True)
        write_atomic(
            self.home / FILE, json.dumps({"spec": to_yaml(self.spec), "space": space, "cwd": self.cwd}, indent=1)
        )

    @staticmethod
    def read(home: Path) -> Plan:
        """Read the file of :meth:`write`."""
        content = json.loads((home / FILE).read_text(encoding="utf-8"))
        tree = OmegaConf.to_container(OmegaConf.create(content["spec"]))
        return Plan(home, load_spec(cast("dict[str, Any]", tree)), load_space(content["space"]), content["cwd"])


def make_plan(
    spec: str | Path | Mapping[str, Any] | Spec, overrides: Sequence[str], space: str | Path | Mapping[str, Any]
) -> Plan:
    """Read both files and check everything that would stop a trial, before one starts.

    Raises:
        SpecError: with all problems; for an unknown field with the nearest name.
    """
    loaded, searched = load_spec(spec, overrides), load_space(space)
    plan = Plan((Path(loaded.results_dir) / FOLDER).absolute(), loaded, searched, str(Path.cwd()))
    if problems := _field_problems(plan) or _problems(plan):
        raise SpecError(*problems)
    section = getattr(loaded, searched.task.value)
    if hasattr(section, "checkpoint"):  # its default depends on results_dir, which differs between trials
        named = section.checkpoint or getattr(section, "model_path", None)
        section.checkpoint = str(find_checkpoint(loaded, named, f"{searched.task.value}.checkpoint").resolve())
        if hasattr(section, "model_path"):
            section.model_path = None
    return plan


def overrides_of(values: dict[str, Any]) -> list[str]:
    """Return ``key=value`` for each field that varies."""
    return [f"{path}={json.dumps(value)}" for path, value in values.items()]


def trial_spec(plan: Plan, record: TrialRecord) -> Spec:
    """Return the complete spec of a trial."""
    # A clone has folders of its own: what its trial wrote before, here and on a mirror, is of other weights.
    folder = f"{record.name}/clone_{len(record.clones)}" if record.clones else record.name
    spec = load_spec(plan.common, overrides_of(record.values))
    spec.results_dir = str(plan.home / folder)
    for section in (spec.distill, spec.prune, spec.low_rank, spec.quantize, spec.quantize.qat):
        section.results_dir = None
    spec.dataset.index_dir = plan.spec.dataset.index_dir or str(plan.home / "index")
    spec.distill.then = []
    spec.feature_cache.enabled = spec.feature_cache.folder is not None  # none of its own for each trial
    if spec.train.checkpoint_dir:
        spec.train.checkpoint_dir = f"{spec.train.checkpoint_dir.rstrip('/')}/tune/{folder}"
    spec.wandb.group, spec.wandb.name = plan.name, record.name
    spec.wandb.id = f"{hashlib.sha256(str(plan.home).encode()).hexdigest()[:8]}-{record.number}"
    if plan.pooled:
        for teacher in frozen_teachers(spec):
            service = spec.teachers.setdefault(teacher.name, copy.deepcopy(teacher.service))
            service.pool = service.pool or plan.pool
    if not nested(spec):
        spec.cluster.mode = ClusterMode.local
    if plan.space.scheduler.type is SchedulerType.pbt:
        spec.train.keep_last = None  # another trial may copy any of them
        spec.cluster.spot = False  # whose defaults keep three
        spec.train.checkpoint_interval = plan.space.scheduler.interval_steps
        spec.train.checkpoint_interval_unit = type(spec.train.checkpoint_interval_unit).step
    if record.cloned_from:
        spec.train.resume_training_checkpoint_path = record.cloned_from
    return spec


def nested(spec: Spec) -> bool:
    """Return whether a trial starts a Ray run with several workers."""
    return spec.worker_bounds[1] > 1 and uses_ray(spec)


def full_spec(plan: Plan, record: TrialRecord) -> Spec:
    """Return the final spec with a trial's values: without ``changes``, in its own folder."""
    spec = load_spec(plan.spec, overrides_of(record.values))
    spec.results_dir = str(plan.home.parent / "best")
    spec.dataset.index_dir = plan.spec.dataset.index_dir or str(plan.home / "index")
    if plan.space.task is TuneTask.quantize:
        spec.quantize.mode = plan.common.quantize.mode
    return spec


def _field_problems(plan: Plan) -> list[Problem]:
    """Return the problems of loading the spec with each possible value of each field."""
    fields: list[tuple[str, list[Any]]] = []
    for domain in plan.space.domains:
        fields.append((domain.path, list(domain.values)))
        fields += [(path, value if isinstance(value, list) else [value]) for path, value in domain.when.items()]
    rounds = range(max((len(values) for _, values in fields), default=1))
    problems: dict[Problem, None] = {}
    for i in rounds:  # one value of each field at once, because loading a spec is slow
        overrides = [word for path, values in fields if i < len(values) for word in overrides_of({path: values[i]})]
        try:
            load_spec(plan.spec, [*(plan.space.changes if i == 0 else []), *overrides])
        except SpecError as error:
            problems.update(dict.fromkeys(error.problems))
    return list(problems)


def _problems(plan: Plan) -> list[Problem]:
    space, common, problems = plan.space, plan.common, list[Problem]()
    money = (common.cluster.gpu_hour_price, common.cluster.cpu_hour_price)
    if space.budget.money is not None and not any(money):
        hint = "Set it, or cluster.cpu_hour_price where there are no GPUs."
        problems.append(Problem("a budget in money needs prices", "cluster.gpu_hour_price", hint))
    trains = space.task in (TuneTask.distill, TuneTask.train)
    if space.scheduler.type in (SchedulerType.asha, SchedulerType.median) and not trains:
        if common.quantize.mode is not QuantizeMode.qat and "quantize.mode" not in space.parameters:
            message = "only mode qat reports losses while it runs"
            problems.append(Problem(message, "quantize.mode", "Use scheduler none."))
    val = common.dataset.val_dataset
    if {"fidelity", "knn", "top1"} & set(space.modes) and not (val.tar_data_sources or val.images_dir):
        problems.append(Problem("objectives are measured on held-out images", "dataset.val_dataset"))
    if common.distill.students:
        problems.append(Problem("a trial trains one student", "distill.students", "Leave them out of a sweep's spec."))
    if "fidelity" in space.modes and not common.distill.teacher:
        problems.append(Problem("fidelity needs a teacher", "distill.teacher"))
    problems += _CHECKS[space.task](common) if space.task in _CHECKS else check(common, space.task.value)
    return problems
