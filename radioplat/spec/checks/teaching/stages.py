"""Checks of stages, sizes of partitions, mosaics, and shifted views."""

from __future__ import annotations

from collections.abc import Iterator

from radioplat.errors import Problem
from radioplat.spec.checks.unused_fields import unknown_teacher, unused_fields
from radioplat.spec.resolved.image_sizes import drawn_sizes, partition_sizes, sees, stages_of
from radioplat.spec.resolved.teacher import resolve_teachers, teacher_names
from radioplat.spec.schema.distill import Source, TargetNormType
from radioplat.spec.schema.root import Spec

_WHERE = "distill.stages"


def stage_problems(spec: Spec) -> Iterator[Problem]:
    """Yield problems of ``distill.stages``: teachers, length, and sizes without effect."""
    names, stages = teacher_names(spec.distill.teacher), spec.distill.stages
    for i, stage in enumerate(stages):
        for name in stage.teachers:
            yield from unknown_teacher(name, names, f"{_WHERE}[{i}].teachers")
    if stages:
        yield from _length(spec)
        yield from _taught(spec, names)
    yield from _without_effect(spec)


def _length(spec: Spec) -> Iterator[Problem]:
    total, most = stages_of(spec)[-1].stop, spec.train.max_steps
    if most is not None and most > total:
        hint = f"Leave it out, or add {most - total} steps to a stage; a smaller one ends the run sooner."
        yield Problem(f"the stages add up to {total} steps, not to {most}", "train.max_steps", hint)


def _taught(spec: Spec, names: list[str]) -> Iterator[Problem]:
    stages = stages_of(spec)
    for i, name in enumerate(names):
        if not any(stage.has(name) for stage in stages):
            hint = "Name it in one, or remove it."
            yield Problem(f"no stage has the teacher {name!r}", f"distill.teacher[{i}]", hint)
        norm = spec.distill.target_norm
        if spec.distill.teacher[i].source is not Source.weights:
            continue  # features of a teacher that trains are not transformed
        measured = [stage for stage in stages if stage.first < norm.fit_batches]
        if norm.type is not TargetNormType.none and not any(stage.has(name) for stage in measured):
            yield Problem(
                f"the statistics of {name!r} are measured over the first {norm.fit_batches} global batches, "
                "and it does not teach there",
                "distill.target_norm",
                f"Use it in stage {stages[0].index}, or take type none.",
            )
    for stage in stages:
        for i, _ in enumerate(spec.distill.partitions):
            if not any(stage.has(name) and sees(spec, spec.distill.partitions[i], name) for name in names):
                hint = f"None of them is in distill.partitions[{i}]."
                yield Problem("some micro-batches have no teacher", f"{_WHERE}[{stage.index}].teachers", hint)
                break


def _without_effect(spec: Spec) -> Iterator[Problem]:
    """Check for sizes that other fields replace in all micro-batches."""
    stages, partitions = spec.distill.stages, spec.distill.partitions
    of_partitions = bool(partitions) and all(map(partition_sizes, partitions))
    if of_partitions:
        for where in (f"{_WHERE}[{i}].img_size" for i, stage in enumerate(stages) if stage.img_size):
            yield Problem("every partition sets the size too", where, "Leave out one of them.")
    if drawn_sizes(spec) and (of_partitions or (stages and all(stage.img_size for stage in stages))):
        where = f"{_WHERE}[0].img_size"
        if of_partitions:
            where = f"distill.partitions[0].{'img_size' if partitions[0].img_size else 'sizes'}"
        message = "it replaces the sizes of multi_scales or stochastic_resolutions everywhere"
        yield Problem(message, where, "Leave out one of them.")


def mosaic_problems(spec: Spec) -> Iterator[Problem]:
    """Yield problems of mosaics; :mod:`radioplat.design` checks that the images fit."""
    resolved = resolve_teachers(spec)
    for i, teacher in enumerate(spec.distill.teacher):
        where = f"distill.teacher[{i}]"
        if teacher.mosaic == 1:
            continue
        if teacher.input_size is None or teacher.match_student_resolution:
            hint = "Give input_size, the teacher's native size, and leave out match_student_resolution."
            yield Problem("a mosaic needs a fixed size", f"{where}.mosaic", hint)
        if resolved[i].wanted != {"spatial"}:
            hint = "Take mode spatial, with a loss between maps."
            yield Problem("a mosaic has no summary for each image", f"{where}.mosaic", hint)
        if resolved[i].upsample_factor > 1:
            yield Problem("a mosaic cannot be upsampled", f"{where}.mosaic", "Leave out one of mosaic and adaptor.")


def held_out_view_problems(spec: Spec) -> Iterator[Problem]:
    """Yield shifted or several views in splits for evaluation and calibration."""
    names, hint = ("full_equivariance", "shift_equivariance", "views_per_step"), "Leave it at its default."
    for split in ("val_dataset", "test_dataset", "quant_calibration_dataset"):
        message = "views are shifted and repeated in training only"
        yield from unused_fields(getattr(spec.dataset, split), names, f"dataset.{split}", message, hint)
