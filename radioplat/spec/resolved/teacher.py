"""What each teacher is asked for once the global ``distill`` fields have been inherited."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from radioplat.spec.resolved.image_sizes import sizes_seen_with, student_sizes, views_differ
from radioplat.spec.resolved.losses import definition_of, loss_named
from radioplat.spec.schema.cluster import TeacherServiceConfig
from radioplat.spec.schema.distill import (
    AverageView,
    BindingConfig,
    DistillConfig,
    LossType,
    Mode,
    Source,
    SpatialNormType,
    TargetNormType,
    TeacherConfig,
)
from radioplat.spec.schema.model import BackboneConfig, ModelTask
from radioplat.spec.schema.root import Spec
from radioplat.spec.schema.upsampler import FACTORS, FEATSHARP

_SPATIAL_NORM: dict[SpatialNormType | None, TargetNormType] = {
    SpatialNormType.phi: TargetNormType.phi_s,
    SpatialNormType.zca: TargetNormType.zca,
    SpatialNormType.pca: TargetNormType.pca,
}

# The view of a size that changes, which the student shares with the teachers that match its resolution; and its own
# view where each model has one.
MATCHED, STUDENT = "matched", "student"
# The view of the student's moving average where it is another crop than the student's.
AVERAGE = "average"


@dataclass(frozen=True)
class Term:
    """One loss term of a teacher.

    Attributes:
        kind: summary, spatial or logits.
        weight: multiplies it in the teacher.
        where: the field that it comes from.
        name: its part of ``loss/<teacher>/<name>``: the kind, with the loss behind it for those of ``extra_losses``.
        focal: weight, gamma and largest weight of positions, for a loss that compares maps position by position.
    """

    kind: str
    loss: LossType
    weight: float
    where: str = ""
    extra: bool = False
    focal: tuple[float, float, float] | None = None

    @property
    def name(self) -> str:
        """See the class."""
        return f"{self.kind}_{self.loss.value.rpartition(':')[2]}" if self.extra else self.kind

    @property
    def field(self) -> str:
        """The field that names its loss."""
        return f"{self.where}.type" if self.extra else self.where


# Of a detector: what has a row for each query.
QUERY_MODULES = ("queries", "pred_logits", "pred_boxes")
MODULE = "module:"  # before the name of a module of the teacher, among what is wanted of it


@dataclass(frozen=True)
class Bound:
    """A loss between a module of the teacher and one of the student.

    Attributes:
        name: of the student's projection where the widths differ, and of the term: ``binding_0``.
        where: its field path, ``distill.bindings[0]``.
        beside: other modules of the teacher that the comparison looks at.
    """

    name: str
    where: str
    teacher_module: str
    student_module: str
    loss: LossType
    weight: float
    beside: tuple[str, ...] = ()

    @property
    def teacher_modules(self) -> tuple[str, ...]:
        """Everything of the teacher that it needs."""
        return (self.teacher_module, *self.beside)

    @property
    def key(self) -> str:
        """What the teacher is asked for."""
        return MODULE + self.teacher_module


@dataclass(frozen=True)
class ResolvedTeacher:
    """One teacher, nothing left to inherit.

    Attributes:
        where: its field path, ``distill.teacher[0]``.
        loss_lambda: weight of this teacher in the total loss.
        input_size: pixels a side of what its backbone sees; where sizes are drawn, when it is evaluated.
        norm_mean, norm_std: of images in [0, 1].
        hidden: width of the head's hidden layer, 0 for a single linear layer.
        spatial_num_inner, spatial_version: of the map's head.
        head_upsample: how many times finer than the student's map the head's is.
        token_slot: the student's class token that the summary's head reads; None: one of its own.
        service: with ``max_batch`` set.
        sizes: what it sees of :func:`radioplat.spec.resolved.image_sizes.student_sizes` where it matches the student,
            else empty.
        upsample_factor: how many times finer than its backbone's its map is made; 1: as it is.
        upsampler_checkpoint: what makes it so, None for nothing.
        mosaic: how many of the student's images lie side by side in what it sees, along either axis.
        own_view: name of its view where sizes do not tell it.
        summary_norm, spatial_norm: how targets are transformed.
        source: where it comes from.
        ensemble: several weights whose mean teaches, ``weights`` the first of them; empty for one.
        member: which of an ensemble this is, None for a whole teacher.
    """

    name: str
    where: str
    backbone: BackboneConfig
    weights: str | None
    mode: Mode
    terms: tuple[Term, ...]
    loss_lambda: float
    input_size: int
    patch_size: int | None
    norm_mean: tuple[float, ...]
    norm_std: tuple[float, ...]
    hidden: int
    num_inner: int
    service: TeacherServiceConfig
    sizes: tuple[tuple[int, float], ...] = ()
    upsample_factor: int = 1
    upsampler_checkpoint: str | None = None
    mosaic: int = 1
    own_view: str = ""
    bindings: tuple[Bound, ...] = ()
    spatial_num_inner: int = 0
    spatial_version: str = "v2"
    head_upsample: int = 1
    token_slot: int | None = None
    summary_norm: TargetNormType = TargetNormType.none
    spatial_norm: TargetNormType = TargetNormType.none
    source: Source = Source.weights
    ensemble: tuple[str, ...] = ()
    member: int | None = None

    @property
    def inside(self) -> bool:
        """Whether it answers inside the student's own module: there are no frozen weights to ask."""
        return self.source is not Source.weights

    @property
    def members(self) -> list[ResolvedTeacher]:
        """Each of its ensemble as a teacher of its own; itself where there is none."""
        if not self.ensemble:
            return [self]
        return [replace(self, weights=path, ensemble=(), member=i) for i, path in enumerate(self.ensemble)]

    @property
    def view(self) -> str:
        """Name of the view it sees; of a mosaic, that it is made of."""
        return self.own_view or (MATCHED if self.sizes else str(self.view_size))

    @property
    def view_size(self) -> int:
        """Pixels a side of the view it is given.

        An upsampled teacher looks at tiles of an image that is finer than what its backbone sees; where sizes are drawn
        it shares the student's view, and enlarges that itself.
        """
        return self.input_size * (1 if self.sizes else self.upsample_factor)

    @property
    def wanted(self) -> frozenset[str]:
        """What its losses need: of summary, spatial and logits, and modules by ``MODULE`` and their name."""
        return frozenset(term.kind for term in self.terms) | {MODULE + name for name in self.modules}

    @property
    def modules(self) -> list[str]:
        """Names of the modules whose outputs its losses need."""
        return sorted({name for bound in self.bindings for name in bound.teacher_modules})

    @property
    def norms(self) -> dict[str, TargetNormType]:
        """How what its losses need is transformed, by kind; what stays as it is, is left out."""
        types = {"summary": self.summary_norm, "spatial": self.spatial_norm}
        return {k: t for k, t in types.items() if k in self.wanted and t is not TargetNormType.none}


def resolve_teachers(spec: Spec) -> list[ResolvedTeacher]:
    """All teachers of ``spec``, in its order, with distinct names."""
    teachers = spec.distill.teacher
    return [_resolve(spec, teachers[i], i, name) for i, name in enumerate(teacher_names(teachers))]


def frozen_teachers(spec: Spec) -> list[ResolvedTeacher]:
    """Those of :func:`resolve_teachers` that have frozen weights, wherever they run."""
    return [teacher for teacher in resolve_teachers(spec) if not teacher.inside]


def student_view(spec: Spec) -> str:
    """Name of the view that the student sees."""
    if views_differ(spec.dataset.train_dataset):
        return STUDENT
    return MATCHED if student_sizes(spec) else str(spec.dataset.img_size)


def teacher_names(teachers: list[TeacherConfig]) -> list[str]:
    """Given names, else the backbone's type, else where it comes from; a repeated name gets a number."""
    names: list[str] = []
    for teacher in teachers:
        usual = "teacher" if teacher.source is Source.weights else teacher.source.value
        base = re.sub(r"[^A-Za-z0-9_-]+", "_", teacher.name or teacher.model.backbone.type or usual)
        name, n = base, 2
        while name in names:
            name, n = f"{base}_{n}", n + 1
        names.append(name)
    return names


def average_view(spec: Spec, view: AverageView) -> str:
    """Name of the view that the student's average sees."""
    return AVERAGE if view is AverageView.shifted else student_view(spec)


def _own_view(spec: Spec, teacher: TeacherConfig, name: str) -> str:
    if teacher.source is Source.ema:
        return average_view(spec, teacher.view)
    if teacher.mosaic > 1 or teacher.source is Source.deeper:
        return student_view(spec)
    return f"teacher {name}" if views_differ(spec.dataset.train_dataset) else ""


def _service(spec: Spec, name: str, mosaic: int) -> TeacherServiceConfig:
    service = spec.teachers.get(name, TeacherServiceConfig())
    pictures = -(-spec.dataset.batch_size // mosaic**2)
    return service if service.max_batch is not None else replace(service, max_batch=pictures)


def _resolve(spec: Spec, teacher: TeacherConfig, index: int, name: str) -> ResolvedTeacher:
    common, augmentation = spec.distill, spec.dataset.augmentation
    loss = teacher.loss_type or common.loss_type
    mode = teacher.mode or common.mode
    if mode is Mode.auto:
        mode = definition_of(loss).default_mode
    match = teacher.match_student_resolution
    if match is None:
        match = teacher.input_size is None
    upsampled = teacher.adaptor == FEATSHARP and teacher.do_upsample and teacher.upsample_factor in FACTORS
    own_size = teacher.input_size or spec.dataset.img_size
    inside = teacher.source is not Source.weights
    detects = spec.model.task is ModelTask.detection
    one = teacher.pretrained_teacher_model_path or teacher.model.backbone.pretrained_backbone_path
    return ResolvedTeacher(
        name=name,
        where=f"distill.teacher[{index}]",
        backbone=teacher.model.backbone,
        weights=teacher.ensemble[0] if teacher.ensemble else one,
        mode=mode,
        # What lies deeper in the student, and a detector, teach by bindings alone.
        terms=()
        if teacher.source is Source.deeper or detects
        else _terms(teacher, loss, mode, f"distill.teacher[{index}]"),
        loss_lambda=common.loss_lambda if teacher.loss_lambda is None else teacher.loss_lambda,
        input_size=spec.dataset.img_size if match else own_size,
        patch_size=teacher.patch_size,
        norm_mean=tuple(teacher.norm_mean or augmentation.mean),
        norm_std=tuple(teacher.norm_std or augmentation.std),
        hidden=common.mlp_hidden_size if common.use_mlp else 0,
        num_inner=common.mlp_num_inner,
        service=_service(spec, name, max(1, teacher.mosaic)),
        sizes=sizes_seen_with(spec, name) if match else (),
        upsample_factor=teacher.upsample_factor if upsampled else 1,
        upsampler_checkpoint=teacher.upsampler_checkpoint if upsampled else None,
        mosaic=max(1, teacher.mosaic),
        own_view=_own_view(spec, teacher, name),
        bindings=_bindings(common, name, detects),
        spatial_num_inner=_spatial_num_inner(teacher, common),
        spatial_version=teacher.spatial_mlp_version,
        head_upsample=teacher.fd_upsample_factor,
        token_slot=teacher.summary_token_idx,
        # What a teacher that moves says has no statistics to go by.
        summary_norm=TargetNormType.none if inside else common.target_norm.type,
        spatial_norm=TargetNormType.none
        if inside
        else _SPATIAL_NORM.get(teacher.spatial_norm_type, common.target_norm.type),
        source=teacher.source,
        ensemble=tuple(teacher.ensemble),
    )


def _spatial_num_inner(teacher: TeacherConfig, common: DistillConfig) -> int:
    """An ``attn`` head has none unless it is told: TAO's have none, and RADIO's loader builds none."""
    if teacher.spatial_num_inner is not None:
        return teacher.spatial_num_inner
    return 0 if teacher.spatial_mlp_version == "attn" else common.mlp_num_inner


def _bindings(distill: DistillConfig, teacher: str, detection: bool) -> tuple[Bound, ...]:
    alone = len(distill.teacher) == 1
    return tuple(
        Bound(
            f"binding_{i}",
            f"distill.bindings[{i}]",
            binding.teacher_module_name,
            binding.student_module_name,
            binding.criterion,
            binding.weight,
            _beside(binding) if detection else (),
        )
        for i, binding in enumerate(distill.bindings)
        if binding.teacher == teacher or (binding.teacher is None and alone)
    )


def _beside(binding: BindingConfig) -> tuple[str, ...]:
    if definition_of(binding.criterion).object_mask:
        return ("memory.0", *QUERY_MODULES)
    return QUERY_MODULES if binding.teacher_module_name in QUERY_MODULES else ()


def _terms(teacher: TeacherConfig, loss: LossType, mode: Mode, where: str) -> tuple[Term, ...]:
    focal = (teacher.spatial_focal_weight, teacher.spatial_focal_gamma, teacher.spatial_focal_max_weight)
    terms = []
    if mode in (Mode.summary, Mode.logits):
        terms.append(Term(mode.value, loss, 1.0, f"{where}.loss_type"))
    if mode is Mode.combo:
        summary = loss_named(teacher.summary_loss_type.value)
        terms.append(Term("summary", summary, teacher.summary_loss_weight, f"{where}.summary_loss_type"))
    if mode in (Mode.spatial, Mode.combo):
        field, chosen = "loss_type", teacher.spatial_loss_type
        if chosen is not None:
            field, loss = "spatial_loss_type", loss_named(chosen.value)
        weight = teacher.fd_loss_weight if mode is Mode.combo else 1.0
        terms.append(Term("spatial", loss, weight, f"{where}.{field}", focal=focal))
    for i, extra in enumerate(teacher.extra_losses):
        kind, at = extra.kind.value, f"{where}.extra_losses[{i}]"
        terms.append(Term(kind, extra.type, extra.weight, at, True, focal if kind == "spatial" else None))
    return tuple(terms)
