"""Design the models of a spec: widths, grids, heads and the student's structure, without weights and data."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from radioplat.design.bindings import with_projections
from radioplat.design.inner_teachers import describe_inside, peer_problems
from radioplat.design.student import build_on_meta, student_problems
from radioplat.design.views import mosaic_problems, size_fields
from radioplat.errors import Problem, SpecError
from radioplat.exporting.weights.export import format_problems
from radioplat.losses.own_function import own_function_problems
from radioplat.losses.target_transforms.transform import FORMS
from radioplat.models.heads import HeadArchitecture
from radioplat.models.pretrained.initial_weights import known_architecture
from radioplat.models.probe import probe
from radioplat.models.quantized.architecture import Quantization
from radioplat.models.student.architecture import StudentArchitecture
from radioplat.models.student.student import Student, sequence_problems
from radioplat.optim.parameter_groups import pattern_problems
from radioplat.spec.checks.tasks.training_task import is_taught, training_task
from radioplat.spec.resolved.labels import classifies
from radioplat.spec.resolved.normalisation import normalisation_problems, student_normalisation
from radioplat.spec.resolved.teacher import ResolvedTeacher, resolve_teachers
from radioplat.spec.schema.distill import Kind, Source
from radioplat.spec.schema.model import ModelTask
from radioplat.spec.schema.root import Spec
from radioplat.teachers.base.info import TeacherInfo
from radioplat.teachers.base.teacher import describe


@dataclass(frozen=True)
class Models:
    """The structure of the models of a spec; no weights, no data."""

    teachers: list[ResolvedTeacher]
    infos: dict[str, TeacherInfo]
    grids: dict[str, tuple[int, int]]
    architecture: StudentArchitecture
    student_stride: int
    student_parameters: int


def target_widths(infos: dict[str, TeacherInfo]) -> dict[tuple[str, str], int]:
    """Return the dimensions of each teacher's summary and map, by name and kind."""
    kinds = ("summary", "spatial")
    return {(name, kind): getattr(info, f"{kind}_dim") for name, info in infos.items() for kind in kinds}


def design_models(spec: Spec, task: str) -> Models:
    """Determine widths, grids and heads.

    Raises:
        SpecError: one problem for each backbone that is unknown, rejects its arguments, or whose stride does not divide
            its input size.
    """
    problems = []
    teachers = resolve_teachers(spec) if is_taught(task) else []
    teacher_heads = training_task(spec, task).teacher_heads
    infos: dict[str, TeacherInfo] = {}
    for i, teacher in enumerate(teachers):
        if teacher.source in (Source.ema, Source.deeper):
            continue
        try:
            follows = spec.distill.teacher[i].input_size is None
            infos[teacher.name] = _describe(teacher, size_fields(spec), follows)
        except SpecError as error:
            problems += error.problems
    try:
        if any(teacher.source in (Source.ema, Source.deeper) for teacher in teachers):
            architecture = student_architecture(spec, task, [], {})
            largest = max(size for size in (spec.dataset.img_size, *size_fields(spec)))
            infos |= describe_inside(teachers, architecture, largest)
        problems += peer_problems(spec, teachers, infos)
        problems += [p for t in teachers if t.name in infos for p in _own_losses(t, infos[t.name])]
        heads = [t for t in teachers if t.name in infos] if teacher_heads else []
        architecture = student_architecture(spec, task, heads, infos)
        architecture = with_projections(architecture, heads, infos)
        student = build_on_meta(architecture)
        problems += pattern_problems(student, spec.train.optim)
        stride = student.stride
        if is_taught(task) and "export" in spec.distill.then:
            config = spec.export
            problems += format_problems(student, config.format, config.adaptors, config.adaptor_types)
            problems += sequence_problems(architecture, "export.num_tokens") if config.num_tokens else []
            for side in ("input_height", "input_width"):
                if size := getattr(spec.export, side):
                    problems += _divides(size, student, f"export.{side}")
        sizes = {spec.dataset.img_size: "dataset.img_size", **size_fields(spec)}
        for size, where in sizes.items():
            problems += _divides(size, student, where)
        problems += [p for t in teachers if t.name in infos for p in mosaic_problems(spec, t, infos[t.name])]
        problems += student_problems(spec, task, student, sizes)
        if not problems:
            maps = [probe(student.backbone, s, frozenset({"summary", "spatial"}), w).spatial for s, w in sizes.items()]
    except SpecError as error:
        problems += error.problems
    if problems:
        raise SpecError(*problems)
    own = max(tuple(features.shape[1:3]) for features in maps if features is not None)
    # The map of a mosaic is transferred in one piece; the maps of its images are cut out later.
    mosaics = {teacher.name for teacher in teachers if teacher.mosaic > 1}
    finer = {head.name: head.upsample for head in architecture.heads}
    grids = {
        name: info.grid
        if name in mosaics
        else tuple(min(finer.get(name, 1) * mine, its) for mine, its in zip(own, info.grid, strict=True))
        for name, info in infos.items()
    }
    parameters = sum(p.numel() for p in student.parameters())
    return Models(teachers, infos, grids, architecture, stride, parameters)


def _own_losses(teacher: ResolvedTeacher, info: TeacherInfo) -> Iterator[Problem]:
    return own_function_problems(teacher, {kind.value: getattr(info, f"{kind.value}_dim") for kind in Kind})


def _describe(teacher: ResolvedTeacher, where: dict[int, str], follows: bool) -> TeacherInfo:
    """Describe a teacher; if its sizes change, the grid is that of the largest.

    Args:
        where: the field of each size.
        follows: whether its input_size is the student's.
    """
    try:
        info, grids = describe(teacher), []
    except SpecError as error:
        raise SpecError(*(_of_the_student(p, teacher, follows) for p in error.problems)) from None
    for size, _ in teacher.sizes:
        try:
            grids.append(describe(dataclasses.replace(teacher, input_size=size)).grid)
        except SpecError as error:
            problems = (dataclasses.replace(p, message=f"teacher {teacher.name}: {p.message}") for p in error.problems)
            raise SpecError(*(dataclasses.replace(p, where=where[size]) for p in problems)) from None
    return dataclasses.replace(info, grid=max([info.grid, *grids]))


def _of_the_student(problem: Problem, teacher: ResolvedTeacher, follows: bool) -> Problem:
    """Name the student's field in a problem of an input size that follows the student's."""
    if not follows or problem.where != f"{teacher.where}.input_size":
        return problem
    message = f"teacher {teacher.name}: {problem.message}"
    return dataclasses.replace(problem, message=message, where="dataset.img_size")


def student_architecture(
    spec: Spec, task: str, teachers: list[ResolvedTeacher], infos: dict[str, TeacherInfo]
) -> StudentArchitecture:
    """Return the student's architecture with heads for ``teachers``.

    Raises:
        SpecError: its type is missing, or its normalisation is invalid.
        WeightsError: pretrained weights cannot be read.
    """
    backbone = spec.model.backbone
    own_classifier = is_taught(task) and classifies(spec)
    heads = tuple(_head(t, infos[t.name], slot, own_classifier) for slot, t in enumerate(teachers))
    (mean, std), where = student_normalisation(spec)
    if wrong := list(normalisation_problems(mean, std, where)):
        raise SpecError(*wrong)
    normal: dict[str, Any] = dict(
        mean=mean,
        std=std,
        drop_path=backbone.drop_path,
        spectral_reparam=backbone.spectral_reparam,
    )
    labelled = not is_taught(task) and spec.model.task is ModelTask.features
    num_classes = spec.dataset.num_classes if own_classifier or labelled else 0
    known = known_architecture(spec)
    if backbone.type in (None, "radio"):
        if known is None:
            raise SpecError(
                "a value is required here",
                where="model.backbone.type",
                hint="Any timm model name or TAO's; pretrained weights of radioplat or RADIO contain it.",
            )
        tokens = max(known.num_class_tokens, len(teachers))
        return dataclasses.replace(
            known,
            heads=heads,
            quantized=_quantized(known, heads),
            num_classes=num_classes,
            class_names=(),
            img_size=spec.dataset.img_size,
            num_class_tokens=tokens,
            kwargs={**known.kwargs, **backbone.kwargs},
            cpe_max_size=backbone.cpe_max_size or known.cpe_max_size,
            num_registers=known.num_registers if backbone.cpe_num_registers is None else backbone.cpe_num_registers,
            register_multiple=backbone.register_multiple or known.register_multiple,
            **normal,
        )
    return StudentArchitecture(
        type=backbone.type,
        kwargs=backbone.kwargs,
        num_class_tokens=max(1, len(teachers)),
        cpe_max_size=backbone.cpe_max_size,
        num_registers=backbone.cpe_num_registers,
        register_multiple=backbone.register_multiple,
        img_size=spec.dataset.img_size,
        num_classes=num_classes,
        heads=heads,
        fused_branches=known is not None and known.type == backbone.type and known.fused_branches,
        pruned=known.pruned if known is not None and known.type == backbone.type else None,
        quantized=_quantized(known, heads) if known is not None and known.type == backbone.type else None,
        low_rank=known.low_rank if known is not None and known.type == backbone.type else {},
        sparsity=known.sparsity if known is not None and known.type == backbone.type else None,
        **normal,
    )


def _quantized(known: StudentArchitecture, heads: tuple[HeadArchitecture, ...]) -> Quantization | None:
    """Return the quantization of pretrained weights; that of heads only if all heads have the same architecture."""
    same = [dataclasses.replace(head, bindings=()) for head in known.heads] == list(heads)
    return known.quantized if same or known.quantized is None else known.quantized.without_heads()


def _head(teacher: ResolvedTeacher, info: TeacherInfo, slot: int, own_classifier: bool) -> HeadArchitecture:
    wanted = teacher.wanted - ({"logits"} if own_classifier else set())
    return HeadArchitecture(
        name=teacher.name,
        summary_dim=info.summary_dim if "summary" in wanted else None,
        spatial_dim=info.spatial_dim if "spatial" in wanted else None,
        logits_dim=info.logits_dim if "logits" in wanted else None,
        token_slot=slot if teacher.token_slot is None else teacher.token_slot,
        hidden=teacher.hidden,
        num_inner=teacher.num_inner,
        spatial_version=teacher.spatial_version,
        spatial_num_inner=teacher.spatial_num_inner,
        upsample=teacher.head_upsample,
        summary_norm=FORMS[teacher.summary_norm],
        spatial_norm=FORMS[teacher.spatial_norm],
        raw_kinds=teacher.raw_kinds,
        identity=not teacher.use_head,
        text_tower=info.native.text_tower if "summary" in wanted and not teacher.ensemble else "",
    )


def _divides(size: int, student: Student, where: str) -> Iterator[Problem]:
    stride = student.stride
    if student.backbone.needs_multiple and size % stride:
        nearest = max(1, round(size / stride)) * stride
        yield Problem(f"{size} is not a multiple of the student's patch {stride}", where, f"Take {nearest}.")
