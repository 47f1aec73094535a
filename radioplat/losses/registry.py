"""Build loss terms by their names in the spec; ``radioplat.spec.resolved.losses`` has their other properties."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from radioplat.losses.base.criterion import BatchWise, Criterion, MapWise, Pair, Pointwise
from radioplat.losses.base.focal import Focal
from radioplat.losses.own_function import own_function
from radioplat.losses.terms import feature, logits, relational, similarity, spatial
from radioplat.losses.terms.angle import Angle
from radioplat.losses.terms.phi_error import PhiError
from radioplat.losses.terms.tangent_sphere import TangentSphere
from radioplat.spec.resolved.terms import Term
from radioplat.spec.schema.distill import DistillConfig, Kind, KLForm, LossType

# Arguments: a checked term, the width of the teacher's features that it compares, and the section ``distill``.
Factory = Callable[[Term, int, DistillConfig], Criterion]


def criterion(term: Term, width: int, config: DistillConfig) -> Criterion:
    """Build the module that computes a checked ``term``.

    Args:
        width: of the teacher's features that it compares.
    """
    build = _pointwise(own_function(term.loss, term.field)) if term.loss.is_own else CRITERIA[term.loss]
    return build(term, width, config)


def _pointwise(function: Pair) -> Factory:
    def build(term: Term, width: int, config: DistillConfig) -> Criterion:
        return Pointwise(function, Focal(*term.focal) if term.focal and term.focal[0] else None)

    return build


def _kl(term: Term, width: int, config: DistillConfig) -> Criterion:
    hinton = config.kl_form is KLForm.hinton
    function = partial(logits.kl_hinton, temperature=config.temperature) if hinton else logits.kl_tao
    return _pointwise(function)(term, width, config)


def _similarity(term: Term, width: int, config: DistillConfig) -> Criterion:
    of_map = term.kind == Kind.spatial.value
    return MapWise(similarity.of_positions) if of_map else BatchWise(similarity.of_images)


CRITERIA: dict[LossType, Factory] = {
    LossType.KL: _kl,
    LossType.CE: _pointwise(logits.ce_tao),
    LossType.L1: _pointwise(feature.l1),
    LossType.L2: _pointwise(feature.mse),
    LossType.MSE: _pointwise(feature.mse),
    LossType.FD: _pointwise(feature.smooth_l1),
    LossType.smooth_l1: _pointwise(feature.smooth_l1_unit),
    LossType.CS: _pointwise(feature.cosine),
    LossType.BALANCED: _pointwise(feature.balanced),
    LossType.dampened_mse: _pointwise(feature.dampened_mse),
    LossType.IOU: _pointwise(feature.mse),  # weighted by radioplat.losses.weighting.iou_mask
    LossType.gram: lambda *_: MapWise(spatial.gram),
    LossType.channel_kl: lambda *_: MapWise(spatial.channel_kl),
    LossType.attention: lambda *_: MapWise(spatial.attention),
    LossType.rkd_distance: lambda *_: BatchWise(relational.rkd_distance),
    LossType.rkd_angle: lambda *_: BatchWise(relational.rkd_angle),
    LossType.similarity: _similarity,
    LossType.phi_s: lambda _, width, __: PhiError(width),
    LossType.angle: lambda _, width, __: Angle(width),
    LossType.tangent_sphere: lambda _, width, __: TangentSphere(width),
}
