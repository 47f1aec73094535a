"""Result of ``plan``: problems, warnings, and a line for each model, source and fact."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from radioplat.errors import Problem, RadioplatError
from radioplat.models.student.architecture import StudentArchitecture
from radioplat.tasks.plan.accepts import TaskLine

Result = TypeVar("Result")


@dataclass(frozen=True)
class ModelLine:
    """One model: parameters, bytes of its weights (and optimizer), where it runs."""

    name: str
    role: str
    parameters: int
    memory: int
    placement: str
    detail: str = ""


@dataclass(frozen=True)
class SourceLine:
    """One source: images indexed and kept, its share of the mixture, and its samples in an epoch."""

    path: str
    images: int
    kept: int
    rejected: dict[str, int]
    share: float
    samples_per_epoch: int


@dataclass
class Plan:
    """Result of ``plan``.

    Attributes:
        problems: reasons why the task cannot start; empty if it can.
        warnings: unusual settings that do not prevent a start.
        models: the student and each teacher: parameters, memory, where it runs.
        sources: the sources of the training images, with the number of images that are kept.
        tasks: tasks that accept or refuse the trained student.
        facts: further lines by title: ``length``, ``data``, ``feature cache``, ...
        free: bytes on the disk of the results folder.
        architecture: of the student that a run would train; None if it is not known.
    """

    problems: list[Problem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    models: list[ModelLine] = field(default_factory=list)
    sources: list[SourceLine] = field(default_factory=list)
    tasks: list[TaskLine] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    free: int | None = None
    architecture: StudentArchitecture | None = None

    @property
    def can_start(self) -> bool:
        """Whether the task can start."""
        return not self.problems

    def attempt(self, action: Callable[..., Result], *arguments: Any) -> Result | None:
        """Call ``action``, and return its result; None if it raises, and its problems are added."""
        try:
            return action(*arguments)
        except RadioplatError as error:
            self.problems += error.problems
            return None

    def include(self, other: Plan, part: str = "") -> None:
        """Add the findings of ``other``, a ``part`` of the task that is named before each problem and fact."""
        self.problems += [replace(each, message=f"{part}: {each.message}") if part else each for each in other.problems]
        self.facts |= {f"{part}: {name}" if part else name: fact for name, fact in other.facts.items()}
        self.warnings += other.warnings
        self.models += other.models
        self.sources += other.sources
        self.tasks += other.tasks
        self.architecture = other.architecture or self.architecture
