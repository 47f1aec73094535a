"""Result of ``plan``: problems, warnings, and a line for each model, source and fact."""

from __future__ import annotations

from dataclasses import dataclass, field

from radioplat.errors import Problem
from radioplat.tasks.plan.accepts import TaskLine


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
        problems: reasons why the run cannot start; empty if it can.
        warnings: unusual settings that do not prevent a start.
        tasks: tasks that accept or refuse the trained student.
    """

    problems: list[Problem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    models: list[ModelLine] = field(default_factory=list)
    sources: list[SourceLine] = field(default_factory=list)
    tasks: list[TaskLine] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
