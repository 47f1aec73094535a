"""Teachers computed inside the student's training module: its moving average, its own deeper layers, and its peers."""

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
    """Interface of the student's moving average (EMA) as a teacher."""

    def __call__(self, images: torch.Tensor, wanted: frozenset[str]) -> Features:
        """Return features of the ``wanted`` kinds for uint8 images ``[B, 3, H, W]``, without gradient."""

    def update(self) -> None:
        """Copy the average's weights as of the last optimizer step; every rank must call it."""


@dataclass
class Inside:
    """Features of the teachers inside the module for one micro-batch.

    Attributes:
        targets: features by teacher, without gradient.
        peers: features by peer, with gradient.
        average: the map of the student's average for MESA, ``[B, h, w, D]``; None if MESA is not active.
        average_view: name of the view that the map was computed from.
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
    """Compute the features of those of ``teachers`` that are inside the student's module.

    Args:
        outputs: outputs of the student's modules, by name.
        grid: rows and columns of the student's map.
        peers: the peers' modules, by teacher name.
        average: the student's moving average, if it is used.
        mesa_view: name of the view on which MESA evaluates the average; "" if MESA is not active.
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
    """Run the average once for each view that any teacher or MESA needs, and write its features into ``inside``."""
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
    """Return ``batch`` with the features of the teachers inside as targets, and with the overlaps of their views."""
    overlaps = {
        teacher.name: batch.inner_overlaps[teacher.view]
        for teacher in teachers
        if teacher.inside and teacher.view in batch.inner_overlaps
    }
    return replace(batch, targets=batch.targets | inside.targets, overlaps=batch.overlaps | overlaps)
