"""Contradictions in who teaches when and at what size: stages, the sizes of partitions, mosaics, views that move."""

from __future__ import annotations

from collections.abc import Iterator

from radioplat.errors import Problem
from radioplat.spec.resolved.image_sizes import Stage, drawn_sizes, sees, stages_of
from radioplat.spec.resolved.teacher import resolve_teachers, teacher_names
from radioplat.spec.schema.distill import Source, TargetNormType
from radioplat.spec.schema.root import Spec

_WHERE = "distill.stages"


def stage_problems(spec: Spec) -> Iterator[Problem]:
    """Stages of unknown teachers or none, and such as the run does not hold."""
    names, stages = teacher_names(spec.distill.teacher), spec.distill.stages
    for i, stage in enumerate(stages):
        for name in stage.teachers:
            if name not in names:
                hint = f"Teachers: {', '.join(names) or 'none'}."
                yield Problem(f"no teacher is called {name!r}", f"{_WHERE}[{i}].teachers", hint)
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
            continue  # what moves is never transformed
        measured = [stage for stage in stages if stage.first < norm.fit_batches]
        if norm.type is not TargetNormType.none and not any(stage.has(name) for stage in measured):
            yield Problem(
                f"the statistics of {name!r} are measured over the first {norm.fit_batches} global batches, "
                "and it does not teach there",
                "distill.target_norm",
                f"Let it teach in stage {stages[0].index}, or take type none.",
            )
    for stage in stages:
        for i, _ in enumerate(spec.distill.partitions):
            if not _seen(spec, stage, i, names):
                hint = f"Nobody in it sees distill.partitions[{i}]."
                yield Problem("some micro-batches have no teacher", f"{_WHERE}[{stage.index}].teachers", hint)
                break


def _seen(spec: Spec, stage: Stage, partition: int, names: list[str]) -> bool:
    return any(stage.has(name) and sees(spec, spec.distill.partitions[partition], name) for name in names)


def _without_effect(spec: Spec) -> Iterator[Problem]:
    """Sizes that others take the place of everywhere."""
    stages, partitions = spec.distill.stages, spec.distill.partitions
    of_partitions = bool(partitions) and all(part.img_size for part in partitions)
    if of_partitions:
        for where in (f"{_WHERE}[{i}].img_size" for i, stage in enumerate(stages) if stage.img_size):
            yield Problem("every partition has a size of its own", where, "Leave out one of them.")
    if drawn_sizes(spec) and (of_partitions or (stages and all(stage.img_size for stage in stages))):
        where = f"{_WHERE}[0].img_size" if not of_partitions else "distill.partitions[0].img_size"
        message = "sizes are drawn too, and this takes the draw's place everywhere"
        yield Problem(message, where, "Leave out one of them.")


def mosaic_problems(spec: Spec) -> Iterator[Problem]:
    """Mosaics of what cannot be tiled; whether images fit is found when the models are designed."""
    resolved = resolve_teachers(spec)
    for i, teacher in enumerate(spec.distill.teacher):
        where = f"distill.teacher[{i}]"
        if teacher.mosaic == 1:
            continue
        if teacher.input_size is None or teacher.match_student_resolution:
            hint = "Give input_size, the teacher's native size, and leave out match_student_resolution."
            yield Problem("a mosaic needs a size of its own", f"{where}.mosaic", hint)
        if resolved[i].wanted != {"spatial"}:
            hint = "Take mode spatial, with a loss between maps."
            yield Problem("of several images at once there is no summary", f"{where}.mosaic", hint)
        if resolved[i].upsample_factor > 1:
            yield Problem("a mosaic cannot be upsampled", f"{where}.mosaic", "Leave out one of mosaic and adaptor.")


def equivariance_problems(spec: Spec) -> Iterator[Problem]:
    """Views that move where nothing is drawn."""
    for split in ("train_dataset", "val_dataset", "test_dataset"):
        for name in ("full_equivariance", "shift_equivariance"):
            if not getattr(getattr(spec.dataset, split), name):
                continue
            where = f"dataset.{split}.{name}"
            if split != "train_dataset":
                hint = "Evaluation cuts the same view for all models. Leave it at its default."
                yield Problem("views move only in training", where, hint)
