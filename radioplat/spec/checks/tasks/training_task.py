"""The registry of training tasks, without torch: distillation, classification, detection, by what a spec says.

A run is started by one of two commands: ``distill`` has teachers, ``train`` has labels alone. What it trains follows
from the command and ``model.task``. What needs models is in :mod:`radioplat.design.tasks`, by the same names; nothing
else compares the name of a task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from radioplat.errors import Problem
from radioplat.spec.checks.tasks.prune_detector import detector_prune_problems
from radioplat.spec.checks.training.detection import (
    detector_problems,
    detector_teaching_problems,
    unused_detector_fields,
    unused_teaching_fields,
)
from radioplat.spec.schema.evaluate import MetricName
from radioplat.spec.schema.model import ModelTask
from radioplat.spec.schema.prune import PruneConfig
from radioplat.spec.schema.root import Spec

Check = Callable[[Spec], Iterator[Problem]]


def _count_classes(spec: Spec) -> bool:
    return spec.dataset.num_classes > 0


def _classes(spec: Spec) -> Iterator[Problem]:
    if spec.dataset.num_classes < 1:
        yield Problem("fine-tuning needs the number of classes", "dataset.num_classes")


def _no_problems(_: object) -> Iterator[Problem]:
    yield from ()


@dataclass(frozen=True)
class TrainingTask:
    """Runs of one kind, by their specs alone; defaults are those of students of features.

    Attributes:
        name: key of the registries.
        commands: that start it.
        model_task: ``model.task`` of its specs.
        has_labels: whether a spec names labels to learn from.
        teacher_heads: whether the student has a head for each teacher.
        reads_boxes: whether its images are annotated with boxes.
        columns: figures of a validation that rank checkpoints, the first that is measured; larger is better.
        gate_metric: that a compression is judged by where the spec names none.
        check_fields: checks of model and data, beside those of all tasks.
        check_teaching: of ``distill``, where teachers teach it.
        check_labels: where only labels do.
        check_pruning: of the section ``prune`` for its students.
    """

    name: str
    commands: tuple[str, ...]
    model_task: ModelTask = ModelTask.features
    has_labels: Callable[[Spec], bool] = _count_classes
    teacher_heads: bool = True
    reads_boxes: bool = False
    columns: tuple[str, ...] = ("accuracy/top1", "knn/top1")
    gate_metric: MetricName = MetricName.fidelity
    check_fields: Check = unused_detector_fields
    check_teaching: Check = unused_teaching_fields
    check_labels: Check = _classes
    check_pruning: Callable[[PruneConfig], Iterator[Problem]] = _no_problems


_TAUGHT = {"distill": True, "train": False, "train_upsampler": True}
COMMANDS = ("distill", "train")  # that start a run
TRAINING_TASKS = (
    TrainingTask(
        "detect",
        COMMANDS,
        model_task=ModelTask.detection,
        has_labels=lambda _: True,
        teacher_heads=False,
        reads_boxes=True,
        columns=("mAP",),
        gate_metric=MetricName.mAP,
        check_fields=detector_problems,
        check_teaching=detector_teaching_problems,
        check_labels=_no_problems,
        check_pruning=detector_prune_problems,
    ),
    TrainingTask("distill", ("distill",)),
    TrainingTask("classify", ("train",)),
)


def command_of(spec: Spec) -> str:
    """Return the command that trains by ``spec``: ``distill`` where it names teachers, else ``train``."""
    return command_with(bool(spec.distill.teacher))


def command_with(teachers: bool) -> str:
    """Return the command that trains with teachers, or without."""
    return next(command for command in COMMANDS if _TAUGHT[command] == teachers)


def is_taught(command: str) -> bool:
    """Return whether ``command`` has teachers."""
    return _TAUGHT[command]


def training_task(spec: Spec, command: str | None = None) -> TrainingTask:
    """Return the task that ``command`` trains by ``spec``; default: the command is :func:`command_of`."""
    command = command or command_of(spec)
    return next(t for t in TRAINING_TASKS if t.model_task is spec.model.task and command in t.commands)
