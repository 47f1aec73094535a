"""The views that a run cuts from every image: their models, sizes and micro-batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from radioplat.data.order.partitions import Draw, Stretch
from radioplat.errors import Problem
from radioplat.spec.resolved.image_sizes import (
    Stage,
    changes_by_plan,
    draw_at,
    partition_sizes,
    scale_chances,
    sees,
    sizes_seen_with,
    stages_of,
    student_sizes,
    views_differ,
)
from radioplat.spec.resolved.partitions import counts
from radioplat.spec.resolved.teacher import AVERAGE, ResolvedTeacher, student_view
from radioplat.spec.schema.distill import AverageView, PartitionConfig
from radioplat.spec.schema.root import Spec
from radioplat.teachers.base.info import TeacherInfo

if TYPE_CHECKING:
    from radioplat.data.views.render import ViewSpec


def run_views(
    spec: Spec, teachers: Sequence[ResolvedTeacher], infos: dict[str, TeacherInfo], student_stride: int
) -> tuple[ViewSpec, ...]:
    """Return one view for each fixed size and one for a changing size; with equivariance one for each model.

    Args:
        infos: by name of the teacher.
        student_stride: pixels that a position of the student's map covers.
    """
    own = student_view(spec)
    viewers: dict[str, list[ResolvedTeacher]] = {}
    for teacher in teachers:
        if teacher.view not in (own, AVERAGE):
            viewers.setdefault(teacher.view, []).append(teacher)
    apart = views_differ(spec.dataset.train_dataset)
    views = []
    for name, sharing in viewers.items():
        first = sharing[0]
        patch = _patch(first, infos[first.name]) if apart else 1
        views.append(_view(spec, name, first.sizes, first.view_size, patch, sharing))
    sizes = student_sizes(spec)
    views.append(_view(spec, own, sizes, spec.dataset.img_size, student_stride if apart else 1, None))
    if average_moves(spec, teachers):
        # The student's EMA sees it in every micro-batch.
        moved = _view(spec, AVERAGE, sizes, spec.dataset.img_size, student_stride, None)
        views.append(moved._replace(shifted=True))
    return tuple(sorted(views, key=lambda view: (bool(view.sizes), view.size, view.name)))


def average_moves(spec: Spec, teachers: Sequence[ResolvedTeacher]) -> bool:
    """Return True if the student's EMA gets another crop than the student."""
    mesa = spec.distill.mesa
    moved = bool(mesa.weight) and mesa.view is AverageView.shifted
    return moved or any(teacher.view == AVERAGE for teacher in teachers)


def _view(
    spec: Spec, name: str, sizes: Draw, size: int, patch: int, viewers: Sequence[ResolvedTeacher] | None
) -> ViewSpec:
    """Create a view; ``sizes`` is empty for a fixed ``size``, ``viewers`` is None for the student."""
    from radioplat.data.views.render import ViewSpec  # here: models are designed without the libraries that render

    plan: tuple[tuple, ...] = ()
    if changes_by_plan(spec):
        plan = tuple(_stretch(spec, stage, sizes, size, viewers) for stage in stages_of(spec))
    return ViewSpec(name, max((s for s, _ in sizes), default=size), patch, sizes, plan)


def _stretch(spec: Spec, stage: Stage, sizes: Draw, size: int, viewers: Sequence[ResolvedTeacher] | None) -> tuple:
    def draw(partition: PartitionConfig | None) -> Draw:
        """Return the sizes in ``partition``; none if no model sees the view."""
        wanted = viewers is None or any(stage.has(t.name) and sees(spec, partition, t.name) for t in viewers)
        return () if not wanted else draw_at(spec, stage, partition) if sizes else ((size, 1.0),)

    partitions, whole = spec.distill.partitions, spec.global_batch_size // spec.dataset.batch_size
    parts = [(count, draw(part)) for count, part in zip(counts(partitions, whole), partitions, strict=True)]
    return tuple(Stretch(stage.first, spec.train.seed, tuple(parts) or ((whole, draw(None)),)))


def _patch(teacher: ResolvedTeacher, info: TeacherInfo) -> int:
    """Return the pixels of its view per patch of its backbone; the view of an upsampled teacher is larger."""
    return max(1, round(info.stride * teacher.upsample_factor * (teacher.view_size // teacher.input_size)))


def size_fields(spec: Spec) -> dict[int, str]:
    """Return the spec field of each size of the student's view; empty if it is always ``dataset.img_size``."""
    scales = scale_chances(spec.dataset.augmentation.multi_scales)
    fields = dict.fromkeys(scales, "dataset.augmentation.multi_scales")
    for i, teacher in enumerate(spec.distill.teacher):
        fields |= {size: f"distill.teacher[{i}].stochastic_resolutions" for size in teacher.stochastic_resolutions}
    for i, stage in enumerate(spec.distill.stages):
        fields |= {stage.img_size: f"distill.stages[{i}].img_size"} if stage.img_size else {}
    for i, partition in enumerate(spec.distill.partitions):
        name = "img_size" if partition.img_size else "sizes"
        fields |= {size: f"distill.partitions[{i}].{name}" for size, _ in partition_sizes(partition)}
    return {size: fields.get(size, "dataset.img_size") for size, _ in student_sizes(spec)}


def mosaic_problems(spec: Spec, teacher: ResolvedTeacher, info: TeacherInfo) -> Iterator[Problem]:
    """Yield sizes of the student at which its images do not cover complete positions of a mosaic teacher's map."""
    side, rows, across = teacher.input_size, info.grid[0], teacher.mosaic
    if across == 1:
        return
    where = f"{teacher.where}.mosaic"
    for size, _ in sizes_seen_with(spec, teacher.name) or ((spec.dataset.img_size, 1.0),):
        if across * size > side:
            hint = f"At most {side // across} pixels a side, or a larger input_size."
            yield Problem(f"{across} x {across} images of {size} do not fit into {side} pixels", where, hint)
        elif size * rows % side:
            hint = f"Take a student's size that is a multiple of {side / rows:g}."
            yield Problem(f"images of {size} pixels do not cover whole positions of {side / rows:g}", where, hint)
