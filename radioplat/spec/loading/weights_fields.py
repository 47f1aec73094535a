"""Fields of the spec that name weights: addresses in them become the paths of what was fetched."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from radioplat.errors import Problem, SpecError
from radioplat.spec.schema.root import Spec
from radioplat.spec.weights.address import is_address
from radioplat.spec.weights.local import local_path

# Last names of the paths of `weights_fields`.
WEIGHTS = (
    "pretrained_backbone_path",
    "pretrained_model_path",
    "pretrained_teacher_model_path",
    "upsampler_checkpoint",
    "ensemble",
    "text_tower",
    "checkpoint",
)
_TASKS = ("evaluate", "inference", "prune", "low_rank", "quantize", "compress", "export")  # with a field `checkpoint`


@dataclass
class WeightsField:
    """A field of a spec that names weights, or one entry of a list of them.

    Attributes:
        path: for example ``distill.teacher[0].ensemble[1]``.
        holder: the section or list that has the value under ``name``, its attribute or index.
    """

    path: str
    holder: Any
    name: str | int

    @property
    def value(self) -> str | None:
        """A path, an address, or None."""
        return self.holder[self.name] if isinstance(self.name, int) else getattr(self.holder, self.name)

    @value.setter
    def value(self, value: str) -> None:
        if isinstance(self.name, int):
            self.holder[self.name] = value
        else:
            setattr(self.holder, self.name, value)


def weights_fields(spec: Spec) -> Iterator[WeightsField]:
    """Yield every field of ``spec`` that names weights to read."""
    yield from _of("model.backbone", spec.model.backbone, "pretrained_backbone_path")
    yield from _of("train", spec.train, "pretrained_model_path")
    for i, teacher in enumerate(spec.distill.teacher):
        where = f"distill.teacher[{i}]"
        yield from _of(where, teacher, "pretrained_teacher_model_path", "upsampler_checkpoint")
        yield from _of(f"{where}.model.backbone", teacher.model.backbone, "pretrained_backbone_path")
        for j in range(len(teacher.ensemble)):
            yield WeightsField(f"{where}.ensemble[{j}]", teacher.ensemble, j)
    yield from _of("evaluate.zero_shot", spec.evaluate.zero_shot, "text_tower")
    for task in _TASKS:
        yield from _of(task, getattr(spec, task), "checkpoint")


def _of(path: str, section: Any, *names: str) -> Iterator[WeightsField]:
    for name in names:
        yield WeightsField(f"{path}.{name}", section, name)


def use_local_weights(spec: Spec) -> None:
    """Replace addresses by the paths of fetched weights, in place; one that was not fetched stays.

    Many tasks never open a teacher's weights; those that do report it, see :func:`unfetched_weights`.
    """
    for field in weights_fields(spec):
        if is_address(field.value):
            try:
                field.value = local_path(str(field.value), field.path)
            except SpecError:
                continue


def unfetched_weights(spec: Spec) -> Iterator[Problem]:
    """Yield a problem for each address of weights that are not on this machine."""
    for field in weights_fields(spec):
        if is_address(field.value):
            try:
                local_path(str(field.value), field.path)
            except SpecError as error:
                yield from error.problems
