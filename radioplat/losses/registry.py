"""Loss names of the spec to what computes them."""

from __future__ import annotations

from functools import partial

from radioplat.losses.base.criterion import BatchWise, Criterion, MapWise, OfBatch, OfMap, Pair, Pointwise
from radioplat.losses.base.focal import Focal
from radioplat.losses.terms import feature, logits, relational, spatial
from radioplat.losses.terms.angle import Angle
from radioplat.losses.terms.phi_error import PhiError
from radioplat.losses.terms.tangent_sphere import TangentSphere
from radioplat.spec.resolved.teacher import Term
from radioplat.spec.schema.distill import DistillConfig, KLForm, LossType

POINTWISE: dict[LossType, Pair] = {
    LossType.KL: logits.kl_tao,
    LossType.CE: logits.ce_tao,
    LossType.L1: feature.l1,
    LossType.L2: feature.mse,
    LossType.MSE: feature.mse,
    LossType.FD: feature.smooth_l1,
    LossType.CS: feature.cosine,
    LossType.BALANCED: feature.balanced,
    LossType.dampened_mse: feature.dampened_mse,
    LossType.IOU: feature.mse,  # where radioplat.losses.weighting.iou_mask says
}
OF_MAPS: dict[LossType, OfMap] = {
    LossType.gram: spatial.gram,
    LossType.channel_kl: spatial.channel_kl,
    LossType.attention: spatial.attention,
}
OF_BATCHES: dict[LossType, OfBatch] = {
    LossType.rkd_distance: relational.rkd_distance,
    LossType.rkd_angle: relational.rkd_angle,
}
RUNNING: dict[LossType, type[Angle] | type[TangentSphere] | type[PhiError]] = {
    LossType.phi_s: PhiError,
    LossType.angle: Angle,
    LossType.tangent_sphere: TangentSphere,
}


def criterion(term: Term, width: int, config: DistillConfig) -> Criterion:
    """What computes a checked ``term``.

    Args:
        width: of the teacher's features that it compares.
    """
    loss = term.loss
    if loss in OF_MAPS:
        return MapWise(OF_MAPS[loss])
    if loss in OF_BATCHES:
        return BatchWise(OF_BATCHES[loss])
    if loss in RUNNING:
        return RUNNING[loss](width)
    if loss is LossType.KL and config.kl_form is KLForm.hinton:
        return Pointwise(partial(logits.kl_hinton, temperature=config.temperature))
    focal = Focal(*term.focal) if term.focal and term.focal[0] else None
    return Pointwise(POINTWISE[loss], focal)
