"""Name the losses that a spec leaves open, so that it says in its fields what a run trains."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from radioplat.spec.resolved.losses import definition_of
from radioplat.spec.resolved.teacher import ResolvedTeacher, resolve_teachers
from radioplat.spec.resolved.terms import EXTRA
from radioplat.spec.schema.distill import ExtraLossConfig, Kind, Mode, SummaryLoss, TeacherConfig
from radioplat.spec.schema.root import Spec


def open_losses(spec: Spec) -> Iterator[tuple[str, Any]]:
    """Yield fields and values that say the same as what ``spec`` leaves open: modes, losses and second losses."""
    for config, teacher in zip(spec.distill.teacher, resolve_teachers(spec), strict=True):
        if not any(_is_default(spec, config, term.where) for term in teacher.terms):
            continue
        yield f"{teacher.where}.mode", teacher.mode
        yield from _first_losses(spec, config, teacher)
        second = [
            ExtraLossConfig(term.loss, Kind(term.kind), term.weight)
            for term in teacher.terms
            if term.extra and EXTRA not in term.where
        ]
        yield f"{teacher.where}.extra_losses", [*second, *config.extra_losses]


def kept_losses(spec: Spec, earlier: Spec) -> Iterator[tuple[str, Any]]:
    """Yield for what ``spec`` leaves open the values of an earlier spec of the run."""
    if len(spec.distill.teacher) != len(earlier.distill.teacher):
        return
    for i, (config, before) in enumerate(zip(spec.distill.teacher, earlier.distill.teacher, strict=True)):
        where, had = f"distill.teacher[{i}]", before.loss_type or earlier.distill.loss_type
        common = spec.distill.mode
        if config.mode is None and (common is Mode.auto or common is before.mode):
            yield f"{where}.mode", before.mode or earlier.distill.mode
        if config.loss_type is None and spec.distill.loss_type is None and had is not None:
            yield f"{where}.loss_type", had
        if config.summary_loss_type is None and before.summary_loss_type is not None:
            yield f"{where}.summary_loss_type", before.summary_loss_type
        of_both = before.extra_losses[len(before.extra_losses) - len(config.extra_losses) :]
        if list(map(asdict, of_both)) == list(map(asdict, config.extra_losses)):
            yield f"{where}.extra_losses", list(before.extra_losses)


def _is_default(spec: Spec, config: TeacherConfig, where: str) -> bool:
    if EXTRA in where:
        return False
    name = where.rpartition(".")[2]
    return getattr(config, name) is None and (name == "summary_loss_type" or spec.distill.loss_type is None)


def _first_losses(spec: Spec, config: TeacherConfig, teacher: ResolvedTeacher) -> Iterator[tuple[str, Any]]:
    for term in teacher.terms:
        if not term.extra and _is_default(spec, config, term.where):
            of_summary = term.where.endswith("summary_loss_type")
            yield term.where, SummaryLoss(definition_of(term.loss).alias) if of_summary else term.loss
