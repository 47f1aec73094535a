"""Operations that a run needs for one image of the student: of the student, and of each teacher.

Counted on the meta device (:mod:`radioplat.models.flops`), averaged over the sizes and over the micro-batches that a
teacher sees. A backward pass is counted as two forward passes. Not counted: losses, the optimizer, windows of
``distill.vitdet``, which make attention cheaper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from radioplat.design.models import Models
from radioplat.design.student import build_on_meta
from radioplat.models.flops import forward_flops
from radioplat.spec.resolved.image_sizes import Draw, sees, stretches, student_sizes
from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.spec.schema.cluster import Placement
from radioplat.spec.schema.distill import Source
from radioplat.spec.schema.root import Spec
from radioplat.teachers.base.flops import teacher_flops

PASSES = 3  # forward, and twice as much backward


@dataclass(frozen=True)
class Work:
    """Operations for one image of the student; a multiplication and an addition are two.

    Attributes:
        student: forward and backward, of backbone and heads; of a frozen backbone forward alone.
        recomputed: the second forward pass of ``train.grad_checkpointing``.
        inner: of teachers inside the objective, and of MESA's average, by name.
        inline: forward of teachers in the workers' processes, by name.
        outer: forward of teachers in actors, by name.
    """

    student: float
    recomputed: float = 0.0
    inner: dict[str, float] = field(default_factory=dict)
    inline: dict[str, float] = field(default_factory=dict)
    outer: dict[str, float] = field(default_factory=dict)

    @property
    def of_worker(self) -> float:
        """Everything that the workers' GPUs compute for an image."""
        return self.student + self.recomputed + sum(self.inner.values()) + sum(self.inline.values())


def work_of(spec: Spec, models: Models, on_ray: bool) -> Work:
    """Count the operations of a run.

    Args:
        on_ray: False for a run of one process, in which every teacher is inline.
    """
    student = build_on_meta(models.architecture).eval()
    draw = student_sizes(spec) or ((spec.dataset.img_size, 1.0),)
    wanted = frozenset({"summary", "spatial"})
    backbone = _mean(draw, lambda size: forward_flops(student, lambda images: student.backbone(images, wanted), size))
    whole = _mean(draw, lambda size: forward_flops(student, student.run_all, size))
    frozen = spec.model.backbone.freeze_backbone
    inner: dict[str, float] = {}
    outside: dict[str, dict[str, float]] = {"inline": {}, "outer": {}}
    for teacher in models.teachers:
        if teacher.source is Source.ema:
            inner[teacher.name] = backbone * seen_share(spec, teacher.name)
        elif teacher.source is Source.peer:
            inner[teacher.name] = PASSES * _forward(spec, teacher)
        elif not teacher.inside:
            place = "inline" if is_inline(teacher, on_ray) else "outer"
            outside[place][teacher.name] = _forward(spec, teacher)
    if spec.distill.mesa.weight and not any(teacher.source is Source.ema for teacher in models.teachers):
        inner["mesa"] = backbone
    return Work(
        student=PASSES * (whole - backbone) + (1 if frozen else PASSES) * backbone,
        recomputed=backbone if spec.train.grad_checkpointing and not frozen else 0.0,
        inner=inner,
        inline=outside["inline"],
        outer=outside["outer"],
    )


def is_inline(teacher: ResolvedTeacher, on_ray: bool) -> bool:
    """Return True if a teacher with frozen weights runs in the workers' processes."""
    return teacher.service.placement is Placement.inline or (not on_ray and not teacher.service.pool)


def seen_share(spec: Spec, teacher: str) -> float:
    """Return the share of the run's micro-batches that ``teacher`` sees, by stages and partitions."""
    everything = list(stretches(spec))
    part_seen = sum(weight for stage, part, weight in everything if stage.has(teacher) and sees(spec, part, teacher))
    return part_seen / sum(weight for _, _, weight in everything)


def _forward(spec: Spec, teacher: ResolvedTeacher) -> float:
    """Return a teacher's operations for one image of the student, also of those that it does not see."""
    draw = teacher.sizes or ((teacher.input_size, 1.0),)
    forward = _mean(draw, lambda size: teacher_flops(teacher, size))
    return forward * seen_share(spec, teacher.name) / teacher.mosaic**2


def _mean(draw: Draw | Iterable[tuple[int, float]], of_size: Callable[[int], float]) -> float:
    return sum(chance * of_size(size) for size, chance in draw)
