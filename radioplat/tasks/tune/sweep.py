"""What all trials of a sweep have in common, and the spec of one of them."""

from __future__ import annotations

import copy
import functools
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from omegaconf import OmegaConf

from radioplat.cluster.ray_cluster import uses_ray
from radioplat.errors import Problem, SpecError
from radioplat.spec.checks.tasks.low_rank import low_rank_problems
from radioplat.spec.checks.tasks.prune import prune_problems
from radioplat.spec.checks.tasks.quantize import quantize_problems
from radioplat.spec.checks.tasks.run import check
from radioplat.spec.loading.load import load_spec, to_yaml
from radioplat.spec.resolved.teacher import frozen_teachers
from radioplat.spec.schema.cluster import ClusterMode, Placement
from radioplat.spec.schema.quantize import QuantizeMode
from radioplat.spec.schema.root import Spec
from radioplat.tasks.compress.groups import compress_problems
from radioplat.tasks.shared.find_checkpoint import find_checkpoint
from radioplat.tasks.tune.draw import ValueOf, grid
from radioplat.tasks.tune.record import TrialRecord
from radioplat.tasks.tune.space import SchedulerType, TuneSpace, TuneTask, load_space
from radioplat.tracking.results import write_atomic

FILE, FOLDER = "plan.json", "tune"
_CHECKS = {
    TuneTask.prune: prune_problems,
    TuneTask.low_rank: low_rank_problems,
    TuneTask.quantize: quantize_problems,
    TuneTask.compress: compress_problems,
}
# Under these a teacher's answers change, and with them the teacher that a pool serves.
_OF_TEACHERS = ("distill.teacher", "dataset.img_size", "dataset.batch_size", "dataset.augmentation", "teachers.")


@dataclass(frozen=True)
class Plan:
    """A sweep.

    Attributes:
        home: ``results_dir/tune``, absolute.
        spec: the user's, without the space's ``changes``.
        cwd: where relative paths of it begin.
    """

    home: Path
    spec: Spec
    space: TuneSpace
    cwd: str = ""

    @property
    def name(self) -> str:
        """Of the sweep, and W&B's group."""
        return self.spec.wandb.group or self._place

    @property
    def pool(self) -> str:
        """The teachers' pool that is this sweep's alone, whatever other sweeps are in its W&B group."""
        return f"tune-{self._place}"

    @property
    def _place(self) -> str:
        return f"{self.home.parent.name}-{hashlib.sha256(str(self.home).encode()).hexdigest()[:6]}"

    @functools.cached_property
    def common(self) -> Spec:
        """The spec with what every trial has; not to be changed."""
        return load_spec(self.spec, self.space.changes)

    @property
    def value_of(self) -> ValueOf:
        """The values that fields have where no trial changes them."""
        tree = OmegaConf.structured(self.common)
        return lambda path: OmegaConf.select(tree, path)

    @property
    def trials(self) -> int:
        """How many there are to be."""
        return self.space.budget.trials or len(grid(self.space, self.value_of))

    @property
    def pooled(self) -> bool:
        """Whether the sweep starts one pool for each teacher, which all trials ask."""
        common = self.common
        touched = any(path.startswith(_OF_TEACHERS) for path in self.space.parameters)
        inline = all(t.service.placement is Placement.inline for t in frozen_teachers(common))
        return self.space.share_teachers and bool(frozen_teachers(common)) and not touched and not inline

    def write(self) -> None:
        """Keep it for the trials, which may run on other machines."""
        space = OmegaConf.to_container(OmegaConf.structured(self.space), enum_to_str=True)
        write_atomic(
            self.home / FILE, json.dumps({"spec": to_yaml(self.spec), "space": space, "cwd": self.cwd}, indent=1)
        )

    @staticmethod
    def read(home: Path) -> Plan:
        """What :meth:`write` left."""
        said = json.loads((home / FILE).read_text(encoding="utf-8"))
        tree = OmegaConf.to_container(OmegaConf.create(said["spec"]))
        return Plan(home, load_spec(cast("dict[str, Any]", tree)), load_space(said["space"]), said["cwd"])


def make_plan(
    spec: Spec | dict[str, Any] | str | Path, overrides: Sequence[str], space: str | Path | dict[str, Any]
) -> Plan:
    """Read both files and find what would stop a trial before one starts.

    Raises:
        SpecError: with every problem; a field that varies and is none has the nearest name beside it.
    """
    loaded, asked = load_spec(spec, overrides), load_space(space)
    plan = Plan((Path(loaded.results_dir) / FOLDER).absolute(), loaded, asked, str(Path.cwd()))
    if problems := list(_field_problems(plan)):
        raise SpecError(*problems)
    if problems := list(_problems(plan)):
        raise SpecError(*problems)
    section = getattr(loaded, asked.task.value)
    if hasattr(section, "checkpoint"):  # whose default lies in results_dir, which is another for each trial
        named = section.checkpoint or getattr(section, "model_path", None)
        section.checkpoint = str(find_checkpoint(loaded, named, f"{asked.task.value}.checkpoint").resolve())
        if hasattr(section, "model_path"):
            section.model_path = None
    return plan


def overrides_of(values: dict[str, Any]) -> list[str]:
    """``key=value`` for each field that varies."""
    return [f"{path}={json.dumps(value)}" for path, value in values.items()]


def trial_spec(plan: Plan, record: TrialRecord) -> Spec:
    """The whole spec that a trial runs."""
    folder = plan.home / record.name
    spec = load_spec(plan.common, overrides_of(record.values))
    spec.results_dir = str(folder / f"clone_{len(record.clones)}" if record.clones else folder)
    for section in (spec.distill, spec.prune, spec.low_rank, spec.quantize, spec.quantize.qat):
        section.results_dir = None
    spec.dataset.index_dir = plan.spec.dataset.index_dir or str(plan.home / "index")
    spec.distill.then = []
    if spec.train.checkpoint_dir:
        spec.train.checkpoint_dir = f"{spec.train.checkpoint_dir.rstrip('/')}/tune/{record.name}"
    spec.wandb.group, spec.wandb.name = plan.name, record.name
    spec.wandb.id = f"{hashlib.sha256(str(plan.home).encode()).hexdigest()[:8]}-{record.number}"
    if plan.pooled:
        for teacher in frozen_teachers(spec):
            service = spec.teachers.setdefault(teacher.name, copy.deepcopy(teacher.service))
            service.pool = service.pool or plan.pool
    if not nested(spec):
        spec.cluster.mode = ClusterMode.local
    if plan.space.scheduler.type is SchedulerType.pbt:
        spec.train.keep_last = None  # another trial may take any of them over
        spec.train.checkpoint_interval = plan.space.scheduler.interval_steps
        spec.train.checkpoint_interval_unit = type(spec.train.checkpoint_interval_unit).step
    if record.cloned_from:
        spec.train.resume_training_checkpoint_path = record.cloned_from
    return spec


def nested(spec: Spec) -> bool:
    """Whether a trial is a Ray run of its own inside the trial: several workers."""
    if spec.worker_bounds[1] > 1:
        return uses_ray(spec)
    return False


def full_spec(plan: Plan, record: TrialRecord) -> Spec:
    """The spec of a trial's values in full: without ``changes``, in a folder of its own."""
    spec = load_spec(plan.spec, overrides_of(record.values))
    spec.results_dir = str(plan.home.parent / "best")
    spec.dataset.index_dir = plan.spec.dataset.index_dir or str(plan.home / "index")
    if plan.space.task is TuneTask.quantize:
        spec.quantize.mode = plan.common.quantize.mode
    return spec


def _field_problems(plan: Plan) -> list[Problem]:
    """Each field that varies, with each kind of value that it may get, through the spec's own machinery."""
    asked: list[tuple[str, list[Any]]] = []
    for domain in plan.space.domains:
        asked.append((domain.path, list(domain.values)))
        asked += [(path, value if isinstance(value, list) else [value]) for path, value in domain.when.items()]
    rounds = range(max((len(values) for _, values in asked), default=1))
    found: dict[Problem, None] = {}
    for i in rounds:  # a value of each at once: reading a spec takes its time
        overrides = [word for path, values in asked if i < len(values) for word in overrides_of({path: values[i]})]
        try:
            load_spec(plan.spec, [*(plan.space.changes if i == 0 else []), *overrides])
        except SpecError as error:
            found.update(dict.fromkeys(error.problems))
    return list(found)


def _problems(plan: Plan) -> list[Problem]:
    space, found = plan.space, list[Problem]()
    common = plan.common
    money = (common.cluster.gpu_hour_price, common.cluster.cpu_hour_price)
    if space.budget.money is not None and not any(money):
        hint = "Set it, or cluster.cpu_hour_price where there are no GPUs."
        found.append(Problem("a budget in money needs prices", "cluster.gpu_hour_price", hint))
    trains = space.task in (TuneTask.distill, TuneTask.train)
    if space.scheduler.type in (SchedulerType.asha, SchedulerType.median) and not trains:
        if common.quantize.mode is not QuantizeMode.qat and "quantize.mode" not in space.parameters:
            found.append(Problem("only mode qat tells anything while it runs", "quantize.mode", "Take scheduler none."))
    val = common.dataset.val_dataset
    if {"fidelity", "knn", "top1"} & set(space.modes) and not (val.tar_data_sources or val.images_dir):
        found.append(Problem("trials are judged on held-out images", "dataset.val_dataset"))
    if "fidelity" in space.modes and not common.distill.teacher:
        found.append(Problem("fidelity is to teachers, and there are none", "distill.teacher"))
    found += _CHECKS[space.task](common) if space.task in _CHECKS else check(common, space.task.value)
    return found
