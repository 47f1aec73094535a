"""The plan of a run: take all steps before its start, without starting, and list models and sources."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from radioplat.cluster.resources import Resources
from radioplat.design.memory import parameter_bytes
from radioplat.design.models import Models
from radioplat.launch.preflight.preflight import Level, Preflight
from radioplat.launch.preflight.steps import take_steps
from radioplat.launch.preflight.teaching import ROLES, backbone_parameters
from radioplat.models.detectors.base import Detector
from radioplat.spec.resolved.precision import precision_of
from radioplat.spec.resolved.teacher import AVERAGE, ResolvedTeacher
from radioplat.spec.resolved.zero import sharding
from radioplat.spec.schema.cluster import TeacherServiceConfig
from radioplat.spec.schema.distill import Source
from radioplat.spec.schema.root import Spec
from radioplat.spec.schema.train import Precision
from radioplat.tasks.plan.accepts import accepted_tasks
from radioplat.tasks.plan.findings import ModelLine, Plan, SourceLine
from radioplat.teachers.base.teacher import compute_dtype


def plan_run(spec: Spec, command: str, folder: Path, level: Level = Level.plan) -> Plan:
    """Take the steps before a start of ``spec``; problems are returned, not raised.

    Args:
        command: ``distill`` or ``train``.
        folder: the run's results folder.
        level: the steps to take.
    """
    return plan_of(take_steps(Preflight(spec, command, folder, level)))


def plan_of(preflight: Preflight) -> Plan:
    """Return the plan of a run whose steps were taken."""
    return Plan(
        problems=preflight.problems,
        warnings=[*preflight.start_notes, *preflight.warnings],
        models=list(_model_lines(preflight)),
        sources=list(_source_lines(preflight)),
        tasks=accepted_tasks(preflight.models.architecture) if preflight.models else [],
        facts=preflight.facts,
        architecture=preflight.models.architecture if preflight.models else None,
    )


def _source_lines(preflight: Preflight) -> Iterator[SourceLine]:
    if (data := preflight.data) is None:
        return
    split, shares = preflight.spec.dataset.train_dataset, data.order.mixture.shares
    samples = preflight.steps_per_epoch * preflight.spec.global_batch_size
    paths = [source.root_dir for source in split.tar_data_sources] + ([split.images_dir] if split.images_dir else [])
    for i, path in enumerate(paths):
        images, share = len(data.index.rows_of(i)), shares[i] / sum(shares)
        yield SourceLine(str(path), images, data.kept_of(i), data.rejected(i), share, round(share * samples))


def _model_lines(preflight: Preflight) -> Iterator[ModelLine]:
    """Yield a line for the student and each teacher: parameters, memory, and the processes that run it."""
    spec, models, resources = preflight.spec, preflight.models, preflight.resources
    if models is None or resources is None:
        return
    fewest, most = spec.worker_bounds
    count = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    device, role, parameters = "GPU" if resources.gpus else "CPU", "student and heads", models.student_parameters
    if preflight.detector is not None:
        role = "detector"
        parameters = sum(parameter.numel() for parameter in Detector(preflight.detector).parameters())
    on_host = ", optimizer on the host" if spec.train.offload else ""
    yield ModelLine(
        "student",
        role,
        parameters,
        parameter_bytes(spec.train, fewest).of(parameters),  # fewest workers need the most memory each
        f"{count} {device} worker(s)" if preflight.on_ray else f"this process, {device}",
        f"{precision_of(spec.train).value}, {sharding(spec.train)}{on_host}, stride {models.student_stride}",
    )
    for teacher in models.teachers:
        if teacher.inside:
            yield _inner_teacher(spec, models, teacher)
        else:
            yield _outer_teacher(models, teacher, resources, preflight.on_ray)
    if spec.distill.mesa.weight and not any(teacher.source is Source.ema for teacher in models.teachers):
        size = backbone_parameters(models)
        yield ModelLine("mesa", ROLES[Source.ema], size, size * _weight_bytes(spec), "inside each worker", "spatial")


def _outer_teacher(models: Models, teacher: ResolvedTeacher, resources: Resources, on_ray: bool) -> ModelLine:
    info, service = models.infos[teacher.name], teacher.service
    size = 2 if "16" in str(compute_dtype(service.precision, resources.device)) else 4
    inline = not on_ray or service.placement.value == "inline"
    rows, columns = models.grids[teacher.name]
    detail = f"{'+'.join(sorted(teacher.wanted))} at {_pixels(teacher)} px, map {info.grid[0]}x{info.grid[1]} "
    detail += f"sent at {rows}x{columns}; {info.needs}"
    detail += f"; the mean of {len(teacher.ensemble)}" if teacher.ensemble else ""
    place = "inside each worker" if inline else _actors(service)
    return ModelLine(teacher.name, "teacher", info.parameters, info.parameters * size, place, detail)


def _inner_teacher(spec: Spec, models: Models, teacher: ResolvedTeacher) -> ModelLine:
    """Return the line of a teacher inside the student's module, of which every worker has a copy."""
    info = models.infos[teacher.name]
    size = info.parameters * _weight_bytes(spec)
    detail = "+".join(sorted(teacher.wanted))
    if teacher.source is Source.peer:
        size = parameter_bytes(spec.train, spec.worker_bounds[0]).of(info.parameters)  # it is trained like the student
        detail += f" at {teacher.view_size} px, trains with the student; {info.needs}"
    elif teacher.source is Source.ema:
        detail += " of another crop" if teacher.view == AVERAGE else " of the student's view"
    return ModelLine(teacher.name, ROLES[teacher.source], info.parameters, size, "inside each worker", detail)


def _weight_bytes(spec: Spec) -> int:
    return 4 if precision_of(spec.train) is Precision.fp32 else 2


def _actors(service: TeacherServiceConfig) -> str:
    least, most = service.bounds
    count = f"{least} to {most}" if most > least else f"{least}"
    return f"{count} actor(s), {service.placement.value}" + (f", pool {service.pool}" if service.pool else "")


def _pixels(teacher: ResolvedTeacher) -> str:
    if teacher.mosaic > 1:
        return f"{teacher.input_size} ({teacher.mosaic} x {teacher.mosaic} of the student's images)"
    if teacher.upsample_factor > 1 and not teacher.sizes:
        return f"{teacher.view_size} (the image at {teacher.input_size}, and {teacher.upsample_factor**2} tiles)"
    return ", ".join(f"{size} ({chance:.0%})" for size, chance in teacher.sizes) or str(teacher.input_size)
