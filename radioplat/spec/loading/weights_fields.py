"""Fields of the spec that name weights: addresses in them become the paths of what was fetched."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from radioplat.errors import Problem, SpecError
from radioplat.spec.schema.root import Spec
from radioplat.spec.weights.address import is_address
from radioplat.spec.weights.local import local_path

# Names of the fields of `weights_fields`, in whatever section.
WEIGHTS = (
    "pretrained_backbone_path",
    "pretrained_model_path",
    "pretrained_teacher_model_path",
    "upsampler_checkpoint",
    "ensemble",
    "text_tower",
)


def weights_fields(spec: Spec) -> Iterator[tuple[str, Any, str | int]]:
    """Yield the path of each field that names weights, the section or list that holds it, and its name or index."""
    yield "model.backbone.pretrained_backbone_path", spec.model.backbone, "pretrained_backbone_path"
    yield "train.pretrained_model_path", spec.train, "pretrained_model_path"
    for i, teacher in enumerate(spec.distill.teacher):
        where = f"distill.teacher[{i}]"
        yield f"{where}.pretrained_teacher_model_path", teacher, "pretrained_teacher_model_path"
        yield f"{where}.upsampler_checkpoint", teacher, "upsampler_checkpoint"
        backbone = teacher.model.backbone
        yield f"{where}.model.backbone.pretrained_backbone_path", backbone, "pretrained_backbone_path"
        for j in range(len(teacher.ensemble)):
            yield f"{where}.ensemble[{j}]", teacher.ensemble, j
    yield "evaluate.zero_shot.text_tower", spec.evaluate.zero_shot, "text_tower"


def value_of(holder: Any, name: str | int) -> str | None:
    """Return the value of a field that :func:`weights_fields` yields."""
    return holder[name] if isinstance(name, int) else getattr(holder, name)


def use_local_weights(spec: Spec) -> None:
    """Replace addresses by the paths of fetched weights, in place; one that was not fetched stays.

    Many tasks never open a teacher's weights; those that do report it, see :func:`unfetched_weights`.
    """
    for where, holder, name in weights_fields(spec):
        value = value_of(holder, name)
        if not is_address(value):
            continue
        with contextlib.suppress(SpecError):
            path = local_path(str(value), where)
            if isinstance(name, int):
                holder[name] = path
            else:
                setattr(holder, name, path)


def unfetched_weights(spec: Spec) -> Iterator[Problem]:
    """Yield a problem for each address of weights that are not on this machine."""
    for where, holder, name in weights_fields(spec):
        if is_address(value := value_of(holder, name)):
            try:
                local_path(str(value), where)
            except SpecError as error:
                yield from error.problems
