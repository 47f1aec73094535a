"""Teachers with all settings resolved: fields that are unset inherit the global ``distill`` ones."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from radioplat.spec.resolved.image_sizes import sizes_seen_with, student_sizes, views_differ
from radioplat.spec.resolved.losses import definition_of
from radioplat.spec.resolved.normalisation import IMAGENET_MEAN, IMAGENET_STD
from radioplat.spec.resolved.precision import Fp32Arithmetic, fp32_arithmetic_of
from radioplat.spec.resolved.terms import MODULE, Bound, Term, bindings_of, terms_of
from radioplat.spec.schema.cluster import TeacherServiceConfig
from radioplat.spec.schema.distill import (
    AverageView,
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

# Names of views: MATCHED is the view of changing size that the student shares with the teachers of its resolution;
# STUDENT is the student's own view where each model has one.
MATCHED, STUDENT = "matched", "student"
# The view of the student's EMA if it gets another crop than the student.
AVERAGE = "average"


@dataclass(frozen=True)
class ResolvedTeacher:
    """One teacher with all settings resolved.

    Attributes:
        where: its field path, ``distill.teacher[0]``.
        loss_lambda: weight of this teacher in the total loss.
        input_size: side in pixels of its backbone's input; if sizes are drawn, its size in evaluations.
        norm_mean, norm_std: per channel, for images in [0, 1].
        hidden: width of the head's hidden layer, 0 for a single linear layer.
        spatial_num_inner, spatial_version: of the spatial head.
        head_upsample: factor by which the spatial head's map is finer than the student's.
        token_slot: index of the student's class token that the summary head reads; None: a token of its own.
        service: with ``max_batch`` set.
        sizes: the part of :func:`radioplat.spec.resolved.image_sizes.student_sizes` that it sees, if it matches the
            student's resolution; else empty.
        upsample_factor: factor by which its map is upsampled; 1: not at all.
        upsampler_checkpoint: file of the upsampler; None for none.
        mosaic: number of the student's images along each axis of the teacher's input.
        own_view: name of its view if it does not follow from the size.
        summary_norm, spatial_norm: transforms of the targets.
        both_sides: see ``distill.target_norm``.
        ensemble: weight files whose mean features are the target, ``weights`` being the first; empty for one file.
        detects: the student is a detector.
        member: index in an ensemble of this teacher, which then has a single weight file; None for a whole teacher.
        threads: in which its replicas compute on a CPU; None: as many as Ray gives them.
        fp32: how its replicas compute fp32 on GPUs.
        also_wanted: outputs that the losses of other students in the same run need.
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
    use_head: bool = True
    head_upsample: int = 1
    token_slot: int | None = None
    summary_norm: TargetNormType = TargetNormType.none
    spatial_norm: TargetNormType = TargetNormType.none
    both_sides: bool = False
    source: Source = Source.weights
    ensemble: tuple[str, ...] = ()
    detects: bool = False
    member: int | None = None
    threads: int | None = None
    fp32: Fp32Arithmetic = Fp32Arithmetic()
    also_wanted: frozenset[str] = frozenset()

    @property
    def inside(self) -> bool:
        """True if the objective computes its features itself, without frozen weights."""
        return self.source is not Source.weights

    @property
    def members(self) -> list[ResolvedTeacher]:
        """The members of its ensemble as single teachers; the teacher itself if it is no ensemble."""
        if not self.ensemble:
            return [self]
        return [replace(self, weights=path, ensemble=(), member=i) for i, path in enumerate(self.ensemble)]

    @property
    def view(self) -> str:
        """Name of its view; for a mosaic, of the view that the tiles come from."""
        return self.own_view or (MATCHED if self.sizes else str(self.view_size))

    @property
    def view_size(self) -> int:
        """Side in pixels of its view.

        An upsampled teacher gets tiles of a view larger than its backbone's input; if sizes are drawn it shares the
        student's view and enlarges it itself.
        """
        return self.input_size * (1 if self.sizes else self.upsample_factor)

    @property
    def wanted(self) -> frozenset[str]:
        """Outputs that losses need: summary, spatial, logits, modules as ``MODULE`` plus their name, coarser maps."""
        return frozenset(term.kind for term in self.terms) | {MODULE + name for name in self.modules} | self.also_wanted

    @property
    def modules(self) -> list[str]:
        """Names of the modules whose outputs its losses need."""
        return sorted({name for bound in self.bindings for name in bound.teacher_modules})

    @property
    def norms(self) -> dict[str, TargetNormType]:
        """Transforms of the outputs that its losses need, by kind; kinds without a transform are left out."""
        types = {"summary": self.summary_norm, "spatial": self.spatial_norm}
        return {k: t for k, t in types.items() if k in self.wanted and t is not TargetNormType.none}

    @property
    def raw_kinds(self) -> tuple[str, ...]:
        """Kinds whose head computes raw features although the losses compare transformed ones."""
        if not self.use_head:
            return tuple(sorted({"summary", "spatial"} & self.wanted))
        measured = (kind for kind, norm in self.norms.items() if norm is not TargetNormType.layer_norm)
        return tuple(measured) if self.both_sides else ()


def resolve_teachers(spec: Spec) -> list[ResolvedTeacher]:
    """Return all teachers of ``spec``, in its order, with distinct names."""
    teachers = spec.distill.teacher
    return [_resolve(spec, teachers[i], i, name) for i, name in enumerate(teacher_names(teachers))]


def frozen_teachers(spec: Spec) -> list[ResolvedTeacher]:
    """Return the teachers with frozen weights, wherever they run."""
    return [teacher for teacher in resolve_teachers(spec) if not teacher.inside]


def student_view(spec: Spec) -> str:
    """Return the name of the student's view."""
    if views_differ(spec.dataset.train_dataset):
        return STUDENT
    return MATCHED if student_sizes(spec) else str(spec.dataset.img_size)


def teacher_names(teachers: list[TeacherConfig]) -> list[str]:
    """Return distinct names of teachers: the given name, else the backbone's type, else the source, numbered."""
    names: list[str] = []
    for teacher in teachers:
        fallback = "teacher" if teacher.source is Source.weights else teacher.source.value
        base = re.sub(r"[^A-Za-z0-9_-]+", "_", teacher.name or teacher.model.backbone.type or fallback)
        name, n = base, 2
        while name in names:
            name, n = f"{base}_{n}", n + 1
        names.append(name)
    return names


def has_hidden_layers(distill: DistillConfig) -> bool:
    """Return ``use_mlp``; if it is unset, whether the spec describes hidden layers of heads."""
    if distill.use_mlp is not None:
        return distill.use_mlp
    default = DistillConfig()
    return any(
        getattr(distill, name) != getattr(default, name) for name in ("mlp_hidden_size", "mlp_num_inner")
    ) or any(teacher.spatial_mlp_version != "v2" or teacher.spatial_num_inner for teacher in distill.teacher)


def average_view(spec: Spec, view: AverageView) -> str:
    """Return the name of the view of the student's EMA."""
    return AVERAGE if view is AverageView.shifted else student_view(spec)


def _own_view(spec: Spec, teacher: TeacherConfig, name: str) -> str:
    if teacher.source is Source.ema:
        return average_view(spec, teacher.view)
    if teacher.mosaic > 1 or teacher.source is Source.deeper:
        return student_view(spec)
    return f"teacher {name}" if views_differ(spec.dataset.train_dataset) else ""


def _service(spec: Spec, name: str, mosaic: int) -> TeacherServiceConfig:
    service = spec.teachers.get(name, TeacherServiceConfig())
    images = -(-spec.dataset.batch_size // mosaic**2)
    return service if service.max_batch is not None else replace(service, max_batch=images)


def _resolve(spec: Spec, teacher: TeacherConfig, index: int, name: str) -> ResolvedTeacher:
    common, augmentation = spec.distill, spec.dataset.augmentation
    loss, mode = _loss_and_mode(spec, teacher)
    match = teacher.match_student_resolution
    if match is None:
        match = teacher.input_size is None
    upsampled = teacher.adaptor == FEATSHARP and teacher.do_upsample and teacher.upsample_factor in FACTORS
    own_size = teacher.input_size or spec.dataset.img_size
    norms = _norms(common, teacher)
    detects = spec.model.task is ModelTask.detection
    weights = teacher.pretrained_teacher_model_path or teacher.model.backbone.pretrained_backbone_path
    return ResolvedTeacher(
        name=name,
        where=f"distill.teacher[{index}]",
        backbone=teacher.model.backbone,
        weights=teacher.ensemble[0] if teacher.ensemble else weights,
        mode=mode,
        # Deeper layers of the student, and detectors, teach by bindings only.
        terms=()
        if teacher.source is Source.deeper or detects
        else terms_of(teacher, loss, mode, f"distill.teacher[{index}]", spec.dataset.batch_size),
        loss_lambda=common.loss_lambda if teacher.loss_lambda is None else teacher.loss_lambda,
        input_size=spec.dataset.img_size if match else own_size,
        patch_size=teacher.patch_size,
        norm_mean=tuple(teacher.norm_mean or augmentation.mean or IMAGENET_MEAN),
        norm_std=tuple(teacher.norm_std or augmentation.std or IMAGENET_STD),
        hidden=common.mlp_hidden_size if has_hidden_layers(common) else 0,
        num_inner=common.mlp_num_inner,
        service=_service(spec, name, max(1, teacher.mosaic)),
        sizes=sizes_seen_with(spec, name) if match else (),
        upsample_factor=teacher.upsample_factor if upsampled else 1,
        upsampler_checkpoint=teacher.upsampler_checkpoint if upsampled else None,
        mosaic=max(1, teacher.mosaic),
        own_view=_own_view(spec, teacher, name),
        bindings=bindings_of(common, name, detects),
        spatial_num_inner=_spatial_num_inner(teacher, common),
        spatial_version=teacher.spatial_mlp_version,
        use_head=teacher.use_head,
        head_upsample=teacher.fd_upsample_factor,
        token_slot=teacher.summary_token_idx,
        summary_norm=norms["summary"],
        spatial_norm=norms["spatial"],
        both_sides=common.target_norm.both_sides,
        source=teacher.source,
        ensemble=tuple(teacher.ensemble),
        detects=detects,
        threads=spec.train.threads,
        fp32=fp32_arithmetic_of(spec.train),
    )


def _norms(common: DistillConfig, teacher: TeacherConfig) -> dict[str, TargetNormType]:
    """Return the transform of each kind of features."""
    if teacher.source is not Source.weights:  # a teacher that is trained itself has no fixed statistics
        return dict.fromkeys(("summary", "spatial"), TargetNormType.none)
    default = common.target_norm.type
    return {
        "summary": teacher.summary_norm_type or default,
        "spatial": _SPATIAL_NORM.get(teacher.spatial_norm_type, default),
    }


def _loss_and_mode(spec: Spec, teacher: TeacherConfig) -> tuple[LossType | None, Mode]:
    """Return the loss, None for the default, and the mode, which is not ``auto``."""
    loss = teacher.loss_type or spec.distill.loss_type
    mode = teacher.mode or spec.distill.mode
    if mode is Mode.auto and loss is not None:
        mode = definition_of(loss).default_mode
    elif mode is Mode.auto:
        mode = Mode.logits if spec.dataset.num_classes > 0 else Mode.combo
    return loss, mode


def _spatial_num_inner(teacher: TeacherConfig, common: DistillConfig) -> int:
    """Return the inner layers of the spatial head; none by default for ``attn``, as in TAO and RADIO."""
    if teacher.spatial_num_inner is not None:
        return teacher.spatial_num_inner
    return 0 if teacher.spatial_mlp_version == "attn" else common.mlp_num_inner
