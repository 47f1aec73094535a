"""What `plan` says of teachers inside the student's module, and of who is the larger of two."""

from __future__ import annotations

from collections.abc import Iterator

from radioplat.design.memory import parameter_bytes
from radioplat.design.models import Models
from radioplat.design.student import build_on_meta
from radioplat.spec.resolved.image_sizes import stages_of
from radioplat.spec.resolved.teacher import AVERAGE, ResolvedTeacher
from radioplat.spec.schema.distill import AverageView, Scheme, Source
from radioplat.spec.schema.root import Spec
from radioplat.spec.schema.train import Precision
from radioplat.tasks.plan.findings import ModelLine, Plan

_ROLES = {Source.ema: "the student's average", Source.deeper: "the student itself", Source.peer: "peer"}


def scheme_found(spec: Spec, models: Models, result: Plan) -> None:
    """The scheme in words, and what is odd about it."""
    scheme, mesa = spec.distill.scheme, spec.distill.mesa
    if mesa.weight:
        view = "another crop" if mesa.view is AverageView.shifted else "the same view"
        result.facts["mesa"] = f"weight {mesa.weight:g} from step {mesa.start_step}, the average sees {view}"
        stop = spec.train.max_steps or (stages_of(spec)[-1].stop if spec.distill.stages else None)
        if stop is not None and mesa.start_step >= stop:
            result.warnings.append(f"distill.mesa.start_step is {mesa.start_step}, and the run ends at step {stop}")
    if scheme is Scheme.reverse:
        result.facts["scheme"] = "reverse: small teachers teach a larger student; it runs as offline does"
        backbone = _backbone_parameters(models)
        for teacher in models.teachers:
            size = models.infos[teacher.name].parameters
            if size >= backbone:
                result.warnings.append(
                    f"{teacher.where}: scheme reverse, and the teacher ({size / 1e6:.2f} M parameters) is not smaller "
                    f"than the student's backbone ({backbone / 1e6:.2f} M)"
                )
    elif scheme is not Scheme.offline:
        who = (f"{t.name} ({_ROLES[t.source]})" for t in models.teachers if t.inside)
        result.facts["scheme"] = f"{scheme.value}: {', '.join(who)}"
    if models.teachers and all(teacher.source is Source.ema for teacher in models.teachers):
        where = "distill.teacher"
        if any(teacher.view != AVERAGE for teacher in models.teachers):
            where += "[].view: the student's average sees what the student sees"
        result.warnings.append(f"{where}: nothing from outside teaches the student, so it can only agree with itself")


def _backbone_parameters(models: Models) -> int:
    return sum(p.numel() for p in build_on_meta(models.architecture).backbone.parameters())


def mesa_lines(spec: Spec, models: Models) -> Iterator[ModelLine]:
    """The line of the average that only MESA asks; none where a teacher's line says it already."""
    if spec.distill.mesa.weight and not any(teacher.source is Source.ema for teacher in models.teachers):
        size = _backbone_parameters(models)
        each = 2 if spec.train.precision is Precision.bf16 else 4
        role = _ROLES[Source.ema]
        yield ModelLine("mesa", role, size, size * each, "inside each worker", "spatial")


def inside_lines(spec: Spec, models: Models, teacher: ResolvedTeacher, world: int) -> Iterator[ModelLine]:
    """The line of a teacher inside the module; what it takes, each worker takes."""
    info, train = models.infos[teacher.name], spec.train
    size = info.parameters * (2 if train.precision is Precision.bf16 else 4)
    detail = "+".join(sorted(teacher.wanted))
    if teacher.source is Source.peer:
        size = parameter_bytes(train, world).of(info.parameters)  # it trains as the student does
        detail += f" at {teacher.view_size} px, trains with the student; {info.needs}"
    elif teacher.source is Source.ema:
        detail += " of another crop" if teacher.view == AVERAGE else " of the student's view"
    yield ModelLine(
        teacher.name,
        _ROLES[teacher.source],
        info.parameters,
        size,
        "inside each worker",
        detail,
    )
