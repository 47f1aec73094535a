"""What each teacher is asked for once the global ``distill`` fields have been inherited."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from radioplat.spec.cluster import TeacherServiceConfig
from radioplat.spec.distill import LossType, Mode, SpatialNormType, SummaryLoss, TargetNormType, TeacherConfig
from radioplat.spec.model import BackboneConfig
from radioplat.spec.root import Spec
from radioplat.spec.upsampling import FACTORS, FEATSHARP

_AUTO = {
    LossType.CE: Mode.logits,
    LossType.KL: Mode.logits,
    LossType.BALANCED: Mode.spatial,
    LossType.MSE: Mode.spatial,
    LossType.L1: Mode.summary,
    LossType.L2: Mode.summary,
    LossType.FD: Mode.summary,
    LossType.CS: Mode.summary,
}


_SPATIAL_NORM = {
    SpatialNormType.phi: TargetNormType.phi_s,
    SpatialNormType.zca: TargetNormType.zca,
    SpatialNormType.pca: TargetNormType.pca,
}

MATCHED = "matched"  # the view of drawn size that the student shares with the teachers that match its resolution


@dataclass(frozen=True)
class Term:
    """One loss term of a teacher: ``kind`` is summary, spatial or logits; ``weight`` multiplies it in the teacher."""

    kind: str
    loss: LossType | SummaryLoss
    weight: float


@dataclass(frozen=True)
class ResolvedTeacher:
    """One teacher, nothing left to inherit.

    Attributes:
        where: its field path, ``distill.teacher[0]``.
        loss_lambda: weight of this teacher in the total loss.
        input_size: pixels a side of what its backbone sees; where sizes are drawn, when it is evaluated.
        norm_mean, norm_std: of images in [0, 1].
        hidden: width of the head's hidden layer, 0 for a single linear layer.
        service: with ``max_batch`` set.
        sizes: the (size, probability) pairs of :func:`drawn_sizes` where it matches the student, else empty.
        upsample_factor: how many times finer than its backbone's its map is made; 1: as it is.
        upsampler_checkpoint: what makes it so, None for nothing.
        summary_norm, spatial_norm: how targets are transformed.
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
    summary_norm: TargetNormType = TargetNormType.none
    spatial_norm: TargetNormType = TargetNormType.none

    @property
    def view(self) -> str:
        """Name of the view it sees."""
        return MATCHED if self.sizes else str(self.view_size)

    @property
    def view_size(self) -> int:
        """Pixels a side of the view it is given.

        An upsampled teacher looks at tiles of an image that is finer than what its backbone sees; where sizes are drawn
        it shares the student's view, and enlarges that itself.
        """
        return self.input_size * (1 if self.sizes else self.upsample_factor)

    @property
    def wanted(self) -> frozenset[str]:
        """What its losses need: of summary, spatial and logits."""
        return frozenset(term.kind for term in self.terms)

    @property
    def norms(self) -> dict[str, TargetNormType]:
        """How what its losses need is transformed, by kind; what stays as it is, is left out."""
        types = {"summary": self.summary_norm, "spatial": self.spatial_norm}
        return {k: t for k, t in types.items() if k in self.wanted and t is not TargetNormType.none}


def resolve_teachers(spec: Spec) -> list[ResolvedTeacher]:
    """All teachers of ``spec``, in its order, with distinct names."""
    teachers = spec.distill.teacher
    return [_resolve(spec, teachers[i], i, name) for i, name in enumerate(teacher_names(teachers))]


def drawn_sizes(spec: Spec) -> tuple[tuple[int, float], ...]:
    """What the student's size is drawn from for each micro-batch: (size, probability) pairs by size; empty for none.

    ``stochastic_resolutions`` of all teachers merge: the largest probability of each size, renormalised.
    ``multi_scales`` draws evenly.
    """
    merged: dict[int, float] = {size: 1.0 for size in spec.dataset.augmentation.multi_scales}
    for teacher in spec.distill.teacher:
        for size, chance in teacher.stochastic_resolutions.items():
            merged[size] = max(chance, merged.get(size, 0.0))
    total = sum(merged.values())
    return tuple((size, merged[size] / total) for size in sorted(merged) if merged[size] > 0)


def teacher_names(teachers: list[TeacherConfig]) -> list[str]:
    """Given names, else the backbone's type; a repeated name gets a number."""
    names: list[str] = []
    for teacher in teachers:
        base = re.sub(r"[^A-Za-z0-9_-]+", "_", teacher.name or teacher.model.backbone.type or "teacher")
        name, n = base, 2
        while name in names:
            name, n = f"{base}_{n}", n + 1
        names.append(name)
    return names


def _service(spec: Spec, name: str) -> TeacherServiceConfig:
    service = spec.teachers.get(name, TeacherServiceConfig())
    return service if service.max_batch is not None else replace(service, max_batch=spec.dataset.batch_size)


def _resolve(spec: Spec, teacher: TeacherConfig, index: int, name: str) -> ResolvedTeacher:
    common, augmentation = spec.distill, spec.dataset.augmentation
    loss = teacher.loss_type or common.loss_type
    mode = teacher.mode or common.mode
    if mode is Mode.auto:
        mode = _AUTO[loss]
    if mode is Mode.combo:
        terms = (
            Term("summary", teacher.summary_loss_type, teacher.summary_loss_weight),
            Term("spatial", loss, teacher.fd_loss_weight),
        )
    else:
        terms = (Term(mode.value, loss, 1.0),)
    match = teacher.match_student_resolution
    if match is None:
        match = teacher.input_size is None
    upsampled = teacher.adaptor == FEATSHARP and teacher.do_upsample and teacher.upsample_factor in FACTORS
    own_size = teacher.input_size or spec.dataset.img_size
    return ResolvedTeacher(
        name=name,
        where=f"distill.teacher[{index}]",
        backbone=teacher.model.backbone,
        weights=teacher.pretrained_teacher_model_path or teacher.model.backbone.pretrained_backbone_path,
        mode=mode,
        terms=terms,
        loss_lambda=common.loss_lambda if teacher.loss_lambda is None else teacher.loss_lambda,
        input_size=spec.dataset.img_size if match else own_size,
        patch_size=teacher.patch_size,
        norm_mean=tuple(teacher.norm_mean or augmentation.mean),
        norm_std=tuple(teacher.norm_std or augmentation.std),
        hidden=common.mlp_hidden_size if common.use_mlp else 0,
        num_inner=common.mlp_num_inner if teacher.spatial_num_inner is None else teacher.spatial_num_inner,
        service=_service(spec, name),
        sizes=drawn_sizes(spec) if match else (),
        upsample_factor=teacher.upsample_factor if upsampled else 1,
        upsampler_checkpoint=teacher.upsampler_checkpoint if upsampled else None,
        summary_norm=common.target_norm.type,
        spatial_norm=_SPATIAL_NORM.get(teacher.spatial_norm_type, common.target_norm.type),
    )
