"""Teachers that answer inside the student's module: its moving average, its own deeper layers, and its peers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

from radioplat.models.capture import as_features
from radioplat.models.features import Features
from radioplat.spec.resolved.teacher import AVERAGE, ResolvedTeacher
from radioplat.spec.schema.distill import AverageView, Source

if TYPE_CHECKING:
    from radioplat.objectives.distill import DistillModule
    from radioplat.objectives.micro_batch import MicroBatch


@dataclass
class Inside:
    """What they say of one micro-batch.

    Attributes:
        targets: by teacher, without a gradient.
        peers: what each peer says, with its gradient.
        average: the map of the student's average for MESA, ``[B, h, w, D]``; None where MESA does not count.
        average_view: name of the view that this map is of.
    """

    targets: dict[str, Features] = field(default_factory=dict)
    peers: dict[str, Features] = field(default_factory=dict)
    average: torch.Tensor | None = None
    average_view: str = ""


def answers_inside(
    module: DistillModule,
    teachers: Sequence[ResolvedTeacher],
    batch: MicroBatch,
    outputs: Mapping[str, torch.Tensor],
    grid: tuple[int, int],
) -> Inside:
    """Ask those of ``teachers`` that live in ``module``.

    Args:
        outputs: what the student's modules gave, by name.
        grid: of the student's map, rows and columns.
    """
    found = Inside()
    _ask_average(module, teachers, batch, found)
    for teacher in teachers:
        if teacher.source is Source.deeper:
            named = {b.key: as_features(outputs[b.teacher_module], grid).detach() for b in teacher.bindings}
            found.targets[teacher.name] = Features(named=named)
        elif teacher.source is Source.peer:
            said = module.peers[teacher.name](batch.views[teacher.view], teacher.wanted)
            found.peers[teacher.name] = said
            found.targets[teacher.name] = said.map(torch.Tensor.detach)
    return found


def _ask_average(module: DistillModule, teachers: Sequence[ResolvedTeacher], batch: MicroBatch, found: Inside) -> None:
    """One forward for each view that is wanted of the average, whoever wants it."""
    mine = [teacher for teacher in teachers if teacher.source is Source.ema]
    wanted: dict[str, frozenset[str]] = {}
    for teacher in mine:
        wanted[teacher.view] = wanted.get(teacher.view, frozenset()) | teacher.wanted
    mesa = module.config.mesa
    if mesa.weight and module.step >= mesa.start_step:
        found.average_view = AVERAGE if mesa.view is AverageView.shifted else module.view
        wanted[found.average_view] = wanted.get(found.average_view, frozenset()) | {"spatial"}
    said = {view: module.average(batch.views[view], kinds) for view, kinds in wanted.items() if module.average}
    found.targets |= {teacher.name: said[teacher.view] for teacher in mine}
    if found.average_view:
        found.average = said[found.average_view].spatial


def with_answers(batch: MicroBatch, teachers: Sequence[ResolvedTeacher], inside: Inside) -> MicroBatch:
    """``batch`` with what was said inside among its targets, and how the views of those teachers lie."""
    overlaps = {
        teacher.name: batch.inner_overlaps[teacher.view]
        for teacher in teachers
        if teacher.inside and teacher.view in batch.inner_overlaps
    }
    return replace(batch, targets=batch.targets | inside.targets, overlaps=batch.overlaps | overlaps)
