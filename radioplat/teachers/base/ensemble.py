"""Ensembles: the mean of several weights of one backbone as one teacher.

Everything is averaged before it is rounded and sent: summaries, maps, outputs of modules, and of class scores
the scores themselves (logits), not the probabilities. The softmax of the mean logits is the members' normalised
geometric mean, which is sharper than the mean of their probabilities where they disagree.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from radioplat.errors import Problem, SpecError
from radioplat.models.features import Features
from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.teachers.adapters.adapter import weights_field

if TYPE_CHECKING:
    from radioplat.teachers.base.info import TeacherInfo

_ALIKE = ("adapter", "summary_dim", "spatial_dim", "logits_dim", "stride", "grid", "named", "class_names")


def mean_of(answers: Sequence[Features]) -> Features:
    """Average the members' features in fp32; all have the same tensors, of the same shapes."""

    def mean(tensors: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
        """Average tensors of one kind; None if it was not wanted."""
        known = [tensor.float() for tensor in tensors if tensor is not None]
        return torch.stack(known).mean(0) if known else None

    named = {name: mean([answer.named[name] for answer in answers]) for name in answers[0].named}
    return Features(
        mean([answer.summary for answer in answers]),
        mean([answer.spatial for answer in answers]),
        {name: value for name, value in named.items() if value is not None},
    )


def in_common(teacher: ResolvedTeacher, infos: Sequence[TeacherInfo]) -> TeacherInfo:
    """Return one description of the members of ``teacher``, with the parameters of all.

    Raises:
        SpecError: they are not all of one structure; one problem for each that differs from the first.
    """
    first, problems = infos[0], []
    for member, info in zip(teacher.members[1:], infos[1:], strict=True):
        unlike = [name for name in _ALIKE if getattr(info, name) != getattr(first, name)]
        if unlike:
            name = unlike[0]
            message = f"its {name} is {getattr(info, name)}, and that of the first member {getattr(first, name)}"
            hint = "An ensemble is made of several weights of the same backbone."
            problems.append(Problem(message, weights_field(member), hint))
    if problems:
        raise SpecError(*problems)
    return dataclasses.replace(first, parameters=sum(info.parameters for info in infos))
