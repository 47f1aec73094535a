"""Teachers that answer inside the student's module: its moving average, its own deeper layers, and its peers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import nn

from radioplat.models.capture import as_features
from radioplat.models.features import Features
from radioplat.objectives.micro_batch import MicroBatch
from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.spec.schema.distill import Source


class AverageTeacher(Protocol):
    """The student's moving average as a teacher."""

    def __call__(self, images: torch.Tensor, wanted: frozenset[str]) -> Features:
        """Features of uint8 images ``[B, 3, H, W]``, of the ``wanted`` kinds, without a gradient."""

    def update(self) -> None:
        """Copy the average as the last optimizer step left it; every rank calls it."""


@dataclass
class Inside:
    """Answers of the teachers inside the module to one micro-batch.

    Attributes:
        targets: by teacher, without a gradient.
        peers: each peer's features, with their gradient.
        average: the map of the student's average for MESA, ``[B, h, w, D]``; None where MESA does not count.
        average_view: name of the view that this map is of.
    """

    targets: dict[str, Features] = field(default_factory=dict)
    peers: dict[str, Features] = field(default_factory=dict)
    average: torch.Tensor | None = None
    average_view: str = ""


def answers_inside(
    teachers: Sequence[ResolvedTeacher],
    batch: MicroBatch,
    outputs: Mapping[str, torch.Tensor],
    grid: tuple[int, int],
    peers: nn.ModuleDict,
    average: AverageTeacher | None,
    mesa_view: str = "",
) -> Inside:
    """Ask those of ``teachers`` that live in the student's module.

    Args:
        outputs: what the student's modules gave, by name.
        grid: of the student's map, rows and columns.
        peers: by the names of teachers.
        average: the student's moving average, where it is asked.
        mesa_view: name of the view whose map of the average MESA compares; "" where MESA does not count.
    """
    inside = Inside()
    if average is not None:
        _ask_average(average, teachers, batch, mesa_view, inside)
    for teacher in teachers:
        if teacher.source is Source.deeper:
            named = {b.key: as_features(outputs[b.teacher_module], grid).detach() for b in teacher.bindings}
            inside.targets[teacher.name] = Features(named=named)
        elif teacher.source is Source.peer:
            answer = peers[teacher.name](batch.views[teacher.view], teacher.wanted)
            inside.peers[teacher.name] = answer
            inside.targets[teacher.name] = answer.map(torch.Tensor.detach)
    return inside


def _ask_average(
    average: AverageTeacher, teachers: Sequence[ResolvedTeacher], batch: MicroBatch, mesa_view: str, inside: Inside
) -> None:
    """One forward for each view that is wanted of the average, whoever wants it."""
    mine = [teacher for teacher in teachers if teacher.source is Source.ema]
    wanted: dict[str, frozenset[str]] = {}
    for teacher in mine:
        wanted[teacher.view] = wanted.get(teacher.view, frozenset()) | teacher.wanted
    if mesa_view:
        wanted[mesa_view] = wanted.get(mesa_view, frozenset()) | {"spatial"}
    answers = {view: average(batch.views[view], kinds) for view, kinds in wanted.items()}
    inside.targets |= {teacher.name: answers[teacher.view] for teacher in mine}
    if mesa_view:
        inside.average, inside.average_view = answers[mesa_view].spatial, mesa_view


def with_answers(batch: MicroBatch, teachers: Sequence[ResolvedTeacher], inside: Inside) -> MicroBatch:
    """``batch`` with what was said inside among its targets, and how the views of those teachers lie."""
    overlaps = {
        teacher.name: batch.inner_overlaps[teacher.view]
        for teacher in teachers
        if teacher.inside and teacher.view in batch.inner_overlaps
    }
    return replace(batch, targets=batch.targets | inside.targets, overlaps=batch.overlaps | overlaps)
