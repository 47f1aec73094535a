"""The registry of training tasks: one line each, by the names of :mod:`radioplat.spec.checks.tasks.training_task`."""

from __future__ import annotations

from radioplat.design.run import Run
from radioplat.design.tasks.detect import Detect
from radioplat.design.tasks.features import Classify, Distill
from radioplat.design.tasks.task import Task
from radioplat.models.model_kind import ModelKind
from radioplat.spec.checks.tasks.training_task import TRAINING_TASKS, training_task
from radioplat.spec.schema.model import ModelTask
from radioplat.spec.schema.root import Spec

TASKS: dict[str, Task] = {"distill": Distill(), "classify": Classify(), "detect": Detect()}


def task_for(spec: Spec, command: str | None = None) -> Task:
    """Return the training task of ``spec`` for ``command``, ``distill`` or ``train``."""
    return TASKS[training_task(spec, command).name]


def model_task_of(kind: ModelKind) -> ModelTask:
    """Return the ``model.task`` of the runs that train models of ``kind``."""
    return next(task.model_task for task in TRAINING_TASKS if TASKS[task.name].model_kind is kind)


def task_of(run: Run) -> Task:
    """Return the training task of ``run``."""
    return task_for(run.spec, run.task)
