"""Operations of a teacher's forward pass."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from radioplat.models.flops import forward_flops
from radioplat.models.on_meta import on_meta
from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.teachers.adapters.adapter import BOTH
from radioplat.teachers.adapters.registry import adapter_class


def teacher_flops(teacher: ResolvedTeacher, size: int | None = None) -> int:
    """Return the operations for one image of its backbone's input; a multiplication and an addition are two.

    An ensemble has those of all members. An upsampler needs the backbone for each of its tiles and for the whole image;
    its own layers are not counted.

    Args:
        size: side in pixels of the input; default: ``teacher.input_size``.

    Raises:
        SpecError: as :func:`radioplat.teachers.base.teacher.describe`.
    """
    size = size or teacher.input_size
    passes = 1 + teacher.upsample_factor**2 if teacher.upsampler_checkpoint else 1
    return passes * sum(_backbone(member, size) for member in teacher.members)


def _backbone(teacher: ResolvedTeacher, size: int) -> int:
    kind = adapter_class(teacher)
    described = kind.structure_without_weights
    with on_meta() if described else contextlib.nullcontext():
        model = kind.build(replace(teacher, input_size=size)).eval()
    wanted = teacher.wanted & (BOTH | {"logits"}) or BOTH  # outputs of modules, for bindings, come on the way
    return forward_flops(model, lambda images: model(images, wanted), size, "meta" if described else "cpu")
