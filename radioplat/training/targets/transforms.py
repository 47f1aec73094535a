"""Measure the transforms of the teachers' targets over batches of their features, and set them in the heads.

The formulas are in ``radioplat.losses.target_transforms.phi_s`` and ``whitening``; the transforms are applied in
``radioplat.models.target_space``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch

from radioplat.common import collectives
from radioplat.data.batch import Batch, View
from radioplat.errors import TrainingError
from radioplat.losses.target_transforms.moments import Moments, MomentSums
from radioplat.losses.target_transforms.phi_s import phi_s, tao_phi_s
from radioplat.losses.target_transforms.transform import FORMS, Transform
from radioplat.losses.target_transforms.whitening import channel_scales, global_scale, pca, zca
from radioplat.models.features import Features
from radioplat.models.student.student import Student
from radioplat.models.target_space import CHANNELS, MATRIX, SCALAR
from radioplat.objectives.overlap import shown_positions
from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.spec.schema.distill import TargetNormType

Key = tuple[str, str]  # (teacher's name, summary or spatial)

_MATRICES: dict[TargetNormType, Callable[[torch.Tensor, torch.Tensor | None], Transform]] = {
    TargetNormType.phi_s: phi_s,
    TargetNormType.zca: lambda covariance, _: zca(covariance),
    TargetNormType.pca: pca,
    TargetNormType.tao_phi_s: lambda covariance, _: tao_phi_s(covariance),
}


def normed(teachers: list[ResolvedTeacher]) -> dict[Key, TargetNormType]:
    """Return the type of transform by teacher and kind of features, without those that need no statistics."""
    return {
        (t.name, kind): norm
        for t in teachers
        for kind, norm in sorted(t.norms.items())
        if norm is not TargetNormType.layer_norm
    }


def empty_moments(
    student: Student, teachers: list[ResolvedTeacher], device: torch.device, full: bool = False
) -> dict[Key, MomentSums]:
    """Return zero moments for each transformed kind of features; ``full``: with products even if variances suffice."""
    return {
        (name, kind): MomentSums(
            len(getattr(student.heads[name], f"{kind}_mean")), full or FORMS[norm] == MATRIX, device
        )
        for (name, kind), norm in normed(teachers).items()
    }


class TargetSums:
    """Measure every teacher's summary and map over micro-batches of all ranks, then set the transforms.

    Any split of the same micro-batches over ranks gives the same result. A teacher is
    measured on the views it got, at the grid that the losses compare; a map only where every pixel shows the image.

    Args:
        device: device on which sums are computed and stored.
        full: measure covariances even if variances suffice.
    """

    def __init__(
        self, student: Student, teachers: list[ResolvedTeacher], device: torch.device, full: bool = False
    ) -> None:
        self._student, self._teachers = student, teachers
        self._sums = empty_moments(student, teachers, device, full)
        self._views = {t.name: t.view for t in teachers}

    def add(self, batch: Batch, answers: Mapping[str, Features]) -> None:
        """Add a micro-batch; teachers without an answer did not get it."""
        weight = torch.tensor(batch.weight)
        for (name, kind), moments in self._sums.items():
            if name in answers:
                values = getattr(answers[name], kind)
                moments.add(values, counting(kind, values, weight, batch.views.get(self._views[name])))

    def finish(self) -> dict[Key, MomentSums]:
        """Set the transforms, and return the moments over all ranks on the CPU; every rank must call it.

        Raises:
            TrainingError: a teacher's features of a sample with weight are not finite.
        """
        sums = {key: mine.over_ranks(collectives.total) for key, mine in self._sums.items()}
        set_transforms(self._student, self._teachers, {key: mine.moments() for key, mine in sums.items()})
        return sums


def counting(kind: str, values: torch.Tensor, weight: torch.Tensor, view: View | None) -> torch.Tensor:
    """Return the included parts of an answer: ``weight`` ``[B]``, or for a map bool ``[B, h, w]``, on its device."""
    if kind != "spatial" or view is None or view.valid is None:
        return weight
    shown = shown_positions(view, tuple(values.shape[:3]))
    if weight.is_cuda:  # not to wait for the device
        shown = shown.pin_memory().to(weight.device, non_blocking=True)
    return (weight > 0).view(-1, 1, 1) & shown


def set_transforms(
    student: Student,
    teachers: list[ResolvedTeacher],
    measured: dict[Key, Moments],
    previous: dict[Key, torch.Tensor] | None = None,
    means_only: bool = False,
) -> dict[Key, torch.Tensor]:
    """Compute the transforms from ``measured``, the same on all ranks, and set them in the heads.

    Args:
        previous: the bases of the current transforms, see
            :func:`radioplat.losses.target_transforms.eigenbasis.matched`.
        means_only: keep the matrices.

    Returns:
        The bases of the new transforms, for those that have one.

    Raises:
        TrainingError: the measured moments are not finite.
    """
    bases = dict(previous or {})
    for (name, kind), norm in normed(teachers).items():
        moments = measured[name, kind]
        if not float(moments.count):
            continue  # this teacher has had no request yet
        with collectives.mark_agreed():
            if not all(bool(torch.isfinite(part).all()) for part in moments.parts()):
                message = f"teacher {name} gave a {kind} that is not finite while its targets were measured"
                raise TrainingError(message, where="distill.target_norm")
        head, mean = student.heads[name], moments.mean()
        if FORMS[norm] == SCALAR:
            # Rounded to bf16, as in earlier versions, so that existing runs resume with the same values.
            scale = global_scale(moments.variance())
            head.set_space(kind, mean=mean.to(torch.bfloat16), scale=scale.to(torch.bfloat16))
        elif FORMS[norm] == CHANNELS:
            head.set_space(kind, mean=mean, scale=channel_scales(moments.variance()))
        elif means_only:
            head.set_space(kind, mean=mean)
        else:
            # LAPACK may round differently on other machines, so rank 0 computes the transform for all.
            covariance = moments.covariance(sample=norm is TargetNormType.tao_phi_s)
            matrix = partial(_MATRICES[norm], covariance, bases.get((name, kind)))
            transform = collectives.from_first(matrix)
            head.set_space(kind, mean=mean, rotation=transform.forward, inverse=transform.inverse)
            if transform.basis is not None:
                bases[name, kind] = transform.basis
    return bases
