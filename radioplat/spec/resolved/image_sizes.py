"""Image sizes and teachers of the student in each stage and partition.

The size of a micro-batch is the ``img_size`` of its partition, or drawn from the partition's ``sizes``; else the
``img_size`` of its stage; else the draw of ``stochastic_resolutions`` or ``multi_scales``; else ``dataset.img_size``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from radioplat.errors import Problem
from radioplat.spec.schema.dataset import SplitConfig
from radioplat.spec.schema.distill import MesaConfig, PartitionConfig
from radioplat.spec.schema.root import Spec

Draw = tuple[tuple[int, float], ...]  # (size, probability) by size; the probabilities add up to 1
FOREVER = 2**62  # steps


@dataclass(frozen=True)
class Stage:
    """One stage: steps ``first`` to ``stop`` (exclusive) of a run.

    Attributes:
        index: position in ``distill.stages``.
        img_size, lr: None for the general setting.
        teachers: names; empty for all.
    """

    index: int
    first: int
    stop: int
    img_size: int | None = None
    teachers: frozenset[str] = frozenset()
    lr: float | None = None

    def has(self, teacher: str) -> bool:
        """Return True if ``teacher`` takes part in this stage."""
        return not self.teachers or teacher in self.teachers


def stages_of(spec: Spec) -> list[Stage]:
    """Return the stages of a spec; a single endless one if it defines none."""
    stages, first = [], 0
    for i, config in enumerate(spec.distill.stages):
        stop = first + config.steps
        stages.append(Stage(i, first, stop, config.img_size, frozenset(config.teachers), config.lr))
        first = stop
    return stages or [Stage(0, 0, FOREVER)]


def scale_problems(spec: Spec) -> Iterator[Problem]:
    """Yield problems of ``multi_scales`` and of ``sizes`` of partitions that are no sizes and probabilities at all."""
    yield from _scale_faults(spec.dataset.augmentation.multi_scales, "dataset.augmentation.multi_scales")
    for i, partition in enumerate(spec.distill.partitions):
        if partition.sizes is not None:
            yield from _scale_faults(partition.sizes, f"distill.partitions[{i}].sizes")


def _scale_faults(scales: Any, where: str) -> Iterator[Problem]:
    """Yield entries that are neither sizes nor mappings, and a mixture of both."""
    name = where.rpartition(".")[2]
    hint = f"Write {name}: [224, 256], or {name}: [{{224: 0.1}}, {{256: 0.9}}]."
    if not isinstance(scales, list | dict):
        yield Problem(f"sizes are expected here, not {scales!r}", where, hint)
        return
    entries = [scales] if isinstance(scales, dict) else scales
    for i, entry in enumerate(entries):
        pairs = entry.items() if isinstance(entry, dict) else ((entry, 1.0),)
        if not all(type(size) is int and type(chance) in (int, float) for size, chance in pairs):
            at = where if isinstance(scales, dict) else f"{where}[{i}]"
            yield Problem(f"a size or {{size: probability}} is expected here, not {entry!r}", at, hint)
    if len({isinstance(entry, dict) for entry in entries}) > 1:
        yield Problem("some of these sizes have a probability and others have none", where, "Give all of them one.")


def scale_chances(scales: list[Any] | dict[int, float] | None) -> dict[int, float]:
    """Return the unnormalised probability of each size of ``multi_scales`` or ``sizes``; repeated mappings add up."""
    chances: dict[int, float] = {}
    for entry in [scales] if isinstance(scales, dict) else scales or ():
        if isinstance(entry, dict):
            for size, chance in entry.items():
                chances[size] = chances.get(size, 0.0) + chance
        else:
            chances[entry] = 1.0
    return chances


def _normalised(chances: dict[int, float]) -> Draw:
    total = sum(chances.values())
    return tuple((size, chances[size] / total) for size in sorted(chances) if chances[size] > 0)


def drawn_sizes(spec: Spec) -> Draw:
    """Return the distribution of the student's size where no stage or partition sets it; empty for a constant size.

    ``stochastic_resolutions`` of all teachers are merged: the largest probability of each size, renormalised.
    """
    merged = scale_chances(spec.dataset.augmentation.multi_scales)
    for teacher in spec.distill.teacher:
        for size, chance in teacher.stochastic_resolutions.items():
            merged[size] = max(chance, merged.get(size, 0.0))
    return _normalised(merged)


def partition_sizes(partition: PartitionConfig | None) -> Draw:
    """Return the distribution of the student's size that ``partition`` sets; empty if it sets none."""
    if partition is not None and partition.img_size:
        return ((partition.img_size, 1.0),)
    return _normalised(scale_chances(partition.sizes)) if partition is not None else ()


def draw_at(spec: Spec, stage: Stage, partition: PartitionConfig | None) -> Draw:
    """Return the distribution of the student's size in ``partition`` and ``stage``; never empty."""
    if own := partition_sizes(partition):
        return own
    if stage.img_size:
        return ((stage.img_size, 1.0),)
    return drawn_sizes(spec) or ((spec.dataset.img_size, 1.0),)


def changes_by_plan(spec: Spec) -> bool:
    """Return True if stages or partitions set sizes of views."""
    return bool(spec.distill.stages) or any(map(partition_sizes, spec.distill.partitions))


def student_sizes(spec: Spec) -> Draw:
    """Return the sizes of the student's view over the whole run with their shares; empty if there is only one."""
    return sizes_seen_with(spec, None)


def sizes_seen_with(spec: Spec, teacher: str | None) -> Draw:
    """Return :func:`student_sizes` over the micro-batches that ``teacher`` sees; over all of them for None."""
    if not any(stage.img_size for stage in stages_of(spec)) and not any(map(partition_sizes, spec.distill.partitions)):
        return drawn_sizes(spec)
    total: dict[int, float] = {}
    for stage, partition, weight in stretches(spec):
        if teacher is None or (stage.has(teacher) and sees(spec, partition, teacher)):
            for size, chance in draw_at(spec, stage, partition):
                total[size] = total.get(size, 0.0) + chance * weight
    # It is empty if the teacher sees no micro-batch, which the checks refuse.
    return _normalised(total) or drawn_sizes(spec) or ((spec.dataset.img_size, 1.0),)


def stretches(spec: Spec) -> Iterator[tuple[Stage, PartitionConfig | None, float]]:
    """Yield every pair of stage and partition, with its number of micro-batches up to a factor."""
    stages = stages_of(spec)
    for stage in stages:
        steps = stage.stop - stage.first if len(stages) > 1 else 1
        if not spec.distill.partitions:
            yield stage, None, steps
        for partition in spec.distill.partitions:
            yield stage, partition, steps * partition.share


def sees(spec: Spec, partition: PartitionConfig | None, teacher: str) -> bool:
    """Return True if ``teacher`` sees ``partition``; a teacher that no partition names sees all."""
    if partition is None or teacher in partition.teachers:
        return True
    return not any(teacher in other.teachers for other in spec.distill.partitions)


def views_differ(split: SplitConfig) -> bool:
    """Return True if each model gets its own, independently shifted view."""
    return split.shift_equivariance or split.full_equivariance


def without_teaching(spec: Spec) -> Spec:
    """Return ``spec`` for a task without teachers: without partitions, stages and MESA."""
    return replace(spec, distill=replace(spec.distill, partitions=[], stages=[], mesa=MesaConfig()))
