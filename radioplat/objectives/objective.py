"""The interface between the training loop and the training module, which computes losses from micro-batches."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from radioplat.data.batch import Batch
from radioplat.objectives.inner_teachers import AverageTeacher
from radioplat.objectives.micro_batch import MicroBatch
from radioplat.spec.resolved.teacher import ResolvedTeacher


@dataclass(frozen=True)
class StepContext:
    """Arguments of :meth:`Objective.begin_step`.

    Attributes:
        step: the global step that begins, from 0.
        batches: this rank's micro-batches of the step, padding included; empty unless the objective sets
            :attr:`Objective.needs_whole_step`.
    """

    step: int
    batches: Sequence[Batch] = ()


class Objective(nn.Module):
    """The student, the losses and everything trained with the student, as the one module that DeepSpeed wraps.

    Subclasses implement :meth:`losses`.

    Args:
        student: the model whose ``state_dict`` a checkpoint contains.
        view: name of the view that the student sees.
        teachers: the teachers whose terms are part of the loss.
        peers: modules that are trained with the student; a checkpoint contains their weights, stored with the optimizer
            state.

    Attributes:
        needs_whole_step: whether :meth:`begin_step` needs all micro-batches of the step.
        average: the student's moving average if :meth:`asks_average` returns True; set before the first step.
        quarantined: names of the teachers whose terms are left out for the rest of the run.
        regularizer: returns a penalty on the weights, which is added to ``loss`` and logged as ``loss/regularizer``.
        observer: called with the name of each term and each sample's part of ``loss`` by it, ``[B]``, by objectives
            that compare samples; None: nobody looks.
    """

    needs_whole_step = False

    def __init__(
        self,
        student: nn.Module,
        view: str,
        teachers: Sequence[ResolvedTeacher] = (),
        peers: nn.ModuleDict | None = None,
    ) -> None:
        super().__init__()
        self.student, self.view, self.teachers = student, view, list(teachers)
        self.peers = nn.ModuleDict() if peers is None else peers
        self.average: AverageTeacher | None = None
        self.quarantined: set[str] = set()
        self.regularizer: Callable[[], torch.Tensor] | None = None
        self.observer: Callable[[str, torch.Tensor], None] | None = None

    def forward(self, batch: MicroBatch) -> dict[str, torch.Tensor]:
        """Return ``loss``, its terms and metrics as fp32 scalars by name; each ``loss`` contains the full penalty."""
        losses = self.losses(batch)
        if self.regularizer is None:
            return losses
        penalty = self.regularizer()
        return {**losses, "loss": losses["loss"] + penalty, "loss/regularizer": penalty}

    @abstractmethod
    def losses(self, batch: MicroBatch) -> dict[str, torch.Tensor]:
        """Return ``loss`` without the regularizer, its terms and metrics, as fp32 scalars by name."""

    def compile_losses(self, backend: str = "inductor") -> None:
        """Compile what follows the backbone in :meth:`losses`, as far as the objective can."""

    def asks_average(self, step: int | None = None) -> bool:
        """Return True if the loss uses the student's moving average at global ``step``; with None, at any step."""
        return False

    def begin_step(self, context: StepContext) -> None:
        """Prepare for a step; every rank calls it before its first micro-batch, so it may use collectives."""

    def quarantine(self, name: str) -> None:
        """Leave out the terms of the teacher ``name`` from now on."""
        self.quarantined.add(name)
