"""The interface of a training task, as the trainer and the steps before a start use it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from radioplat.common.ranks import Ranks
from radioplat.design.run import Run
from radioplat.models.model_kind import ModelKind
from radioplat.objectives.objective import Objective


@dataclass(frozen=True)
class Validation:
    """Result of a validation.

    Attributes:
        kpi: figures by name, see the tasks.
        notes: sentences about how they were measured.
    """

    kpi: dict[str, float]
    notes: list[str] = field(default_factory=list)


class Task(Protocol):
    """The models and validation metrics of one kind of run.

    Their spec fields are in :mod:`radioplat.spec.checks.tasks.training_task`.

    Attributes:
        model_kind: of the checkpoints.
    """

    model_kind: ModelKind

    def objective(self, run: Run) -> Objective:
        """Build the student with its initial weights and all else that is trained; equal on every rank."""
        ...

    def validates(self, run: Run) -> bool:
        """Return True if the run has metrics on held-out images."""
        ...

    def validate(self, run: Run, checkpoint: Path, ranks: Ranks) -> Validation:
        """Measure the weights in ``checkpoint`` on the held-out images; every rank must call it.

        Each rank encodes its share of the images on its device, in the run's precision, with a copy of the model beside
        the one that trains (see :func:`radioplat.design.memory.validation_bytes`); only rank 0 reads ``checkpoint``.
        The result is the same on every rank, and at any number of ranks.

        Raises:
            RadioplatError, OSError: on every rank, if one of them raised it.
        """
        ...
