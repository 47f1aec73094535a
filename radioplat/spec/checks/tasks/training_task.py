"""The registry of training tasks (distillation, classification, detection); it imports no torch.

A run is started by one of two commands: ``distill`` has teachers, ``train`` has labels alone. The command and
``model.task`` determine the training task. The parts of a task that need models are in :mod:`radioplat.design.tasks`,
under the same names; no other code compares the name of a task.
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
    """One kind of run; the defaults are those of ``model.task: features``.

    Attributes:
        name: key of the registries.
        commands: commands that start it.
        model_task: ``model.task`` of its specs.
        has_labels: returns True if a spec trains on labels.
        teacher_heads: the student has a head for each teacher.
        reads_boxes: its images are annotated with boxes.
        columns: validation metrics that rank checkpoints; the first measured one is used; larger is better.
        gate_metric: default metric of the gates of a compression.
        check_fields: further checks of model and data.
        check_teaching: checks of ``distill``, for a run with teachers.
        check_labels: checks of a run without teachers.
        check_pruning: checks of section ``prune`` for its students.
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
COMMANDS = ("distill", "train")  # commands that start a run
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
    """Return the command for ``spec``: ``distill`` if it has teachers, else ``train``."""
    return command_with(bool(spec.distill.teacher))


def described_command(spec: Spec) -> str:
    """Return the command that a spec describes: ``train`` if it has labels and no teachers, else ``distill``."""
    if not spec.distill.teacher and not training_task(spec).has_labels(spec):
        return command_with(teachers=True)  # reports the missing teachers
    return command_of(spec)


def command_with(teachers: bool) -> str:
    """Return the command that trains with teachers, or without."""
    return next(command for command in COMMANDS if _TAUGHT[command] == teachers)


def is_taught(command: str) -> bool:
    """Return True if ``command`` has teachers."""
    return _TAUGHT[command]


def training_task(spec: Spec, command: str | None = None) -> TrainingTask:
    """Return the training task of ``spec`` with ``command``, by default :func:`command_of`."""
    command = command or command_of(spec)
    return next(t for t in TRAINING_TASKS if t.model_task is spec.model.task and command in t.commands)
