"""Local paths of a spec that do not exist: what a task would refuse later, known before torch is imported."""

from __future__ import annotations

import os
from collections.abc import Iterator

from radioplat.errors import Problem, SpecError
from radioplat.spec.checks.tasks.training_run import check
from radioplat.spec.checks.tasks.training_task import COMMANDS, is_taught
from radioplat.spec.resolved.paths import no_such_checkpoint, no_such_folder, no_such_weights
from radioplat.spec.resolved.teacher import frozen_teachers
from radioplat.spec.schema.compress import Stage
from radioplat.spec.schema.dataset import SplitConfig
from radioplat.spec.schema.root import Spec
from radioplat.spec.weights.address import is_address

_SECTIONS = {"sensitivity": "quantize"}  # whose checkpoint a task reads, if it is not the section of its name
_READERS = ("evaluate", "inference", "prune", "low_rank", "quantize", "sensitivity", "compress", "export")


def require_paths(spec: Spec, task: str) -> None:
    """Check that the local paths exist that ``task`` reads.

    Raises:
        SpecError: with each missing path and, for a training, each contradiction between fields.
    """
    if missing := list(missing_paths(spec, task)):
        raise SpecError(*(check(spec, task) if task in COMMANDS else ()), *missing)


def missing_paths(spec: Spec, task: str) -> Iterator[Problem]:
    """Yield a problem for each folder of data, file of weights and checkpoint that ``task`` reads and that is missing.

    Paths on object stores, addresses of weights, and those of pools on other machines are left out; the order is that
    of the steps before a start.

    Args:
        task: a command with a spec; one that reads none of these paths has no problem.
    """
    if task in COMMANDS:
        yield from _of_run(spec, task)
    elif task in _READERS:
        section = _SECTIONS.get(task, task)
        path = getattr(spec, section).checkpoint
        if _reads_checkpoint(spec, task) and _is_missing(path):
            yield no_such_checkpoint(path, f"{section}.checkpoint")


def _of_run(spec: Spec, task: str) -> Iterator[Problem]:
    for teacher in frozen_teachers(spec) if is_taught(task) else ():
        field = f"{teacher.where}.pretrained_teacher_model_path"
        if not teacher.ensemble and not teacher.service.pool and _is_missing(teacher.weights):
            yield no_such_weights(teacher.weights, field)
    for field, path in (
        ("model.backbone.pretrained_backbone_path", spec.model.backbone.pretrained_backbone_path),
        ("train.pretrained_model_path", spec.train.pretrained_model_path),
    ):
        if _is_missing(path):
            yield no_such_weights(path, field)
    yield from _of_split(spec.dataset.train_dataset, "dataset.train_dataset")
    yield from _of_split(spec.dataset.val_dataset, "dataset.val_dataset")


def _of_split(split: SplitConfig, where: str) -> Iterator[Problem]:
    folders = {f"{where}.tar_data_sources[{i}].root_dir": s.root_dir for i, s in enumerate(split.tar_data_sources)}
    for field, folder in (folders | {f"{where}.images_dir": split.images_dir}).items():
        path = os.path.expanduser(folder or "")
        if _is_missing(path):
            yield no_such_folder(os.path.abspath(path), field)


def _reads_checkpoint(spec: Spec, task: str) -> bool:
    unread = {
        "evaluate": bool(spec.evaluate.models),
        "inference": bool(spec.inference.trt_engine),
        "compress": spec.compress.stages[:1] == [Stage.distill],
    }
    return not unread.get(task, False)


def _is_missing(path: str | None) -> bool:
    return bool(path) and "://" not in str(path) and not is_address(path) and not os.path.exists(str(path))
