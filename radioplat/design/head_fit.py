"""Decide which heads are fitted before the first step, and to how many images."""

from __future__ import annotations

from collections.abc import Iterable

from radioplat.design.models import Models
from radioplat.design.student import build_on_meta
from radioplat.models.pretrained.initial_weights import matches
from radioplat.models.student.architecture import StudentArchitecture
from radioplat.models.student.fold_target_norm import last_linear
from radioplat.spec.schema.root import Spec

Key = tuple[str, str]  # (teacher's name, summary or spatial)

POSITIONS = 16  # most positions of a map that are read from one image: neighbours tell little more
ROWS_PER_WIDTH = 4  # rows that a regression should have for each dimension of its input
_SHARE = 0.1  # of the run's images, at most


def pretrained_parts(spec: Spec, architecture: StudentArchitecture) -> set[str]:
    """Return the names of the student's parameters that pretrained weights provide.

    Raises:
        WeightsError: the weights cannot be read, or do not fit.
    """
    return {name for _, match in matches(spec, architecture) for name in match.tensors}


def untrained_heads(architecture: StudentArchitecture, given: set[str]) -> list[Key]:
    """Return teacher's name and kind of the heads for summaries and maps of which ``given`` lacks a parameter."""
    return [
        (name, kind)
        for name, head in build_on_meta(architecture).heads.items()
        for kind in ("summary", "spatial")
        if (layers := getattr(head, kind)) is not None
        and any(f"heads.{name}.{kind}.{parameter}" not in given for parameter, _ in layers.named_parameters())
    ]


def heads_to_fit(spec: Spec, models: Models) -> tuple[Key, ...]:
    """Return teacher's name and kind of the heads that are fitted: untrained ones of teachers with frozen weights.

    Unless ``distill.head_fit.enabled`` says otherwise, heads are fitted if the backbone starts from pretrained weights.

    Raises:
        WeightsError: the weights cannot be read, or do not fit.
    """
    enabled = spec.distill.head_fit.enabled
    if enabled is False or not models.architecture.heads or models.architecture.quantized is not None:
        return ()
    given = pretrained_parts(spec, models.architecture)
    if enabled is None and not any(name.startswith("backbone.") for name in given):
        return ()
    frozen = {teacher.name for teacher in models.teachers if not teacher.inside}
    return tuple(key for key in untrained_heads(models.architecture, given) if key[0] in frozen)


def fit_steps(spec: Spec, models: Models, heads: Iterable[Key], total_steps: int) -> int:
    """Return the number of steps whose images the heads are fitted to.

    Their images are as many as ``distill.head_fit.images``; if that is unset, as many as the widest head needs, but at
    most a tenth of those of the run.
    """
    student = build_on_meta(models.architecture)
    enough = 0.0
    for name, kind in heads:
        rows, columns = models.grids[name]
        of_an_image = min(POSITIONS, rows * columns) if kind == "spatial" else 1
        width = last_linear(getattr(student.heads[name], kind)).in_features
        enough = max(enough, ROWS_PER_WIDTH * width / of_an_image)
    if not enough:
        return 0
    images = spec.distill.head_fit.images or min(enough, _SHARE * total_steps * spec.global_batch_size)
    return min(total_steps, max(1, round(images / spec.global_batch_size)))
