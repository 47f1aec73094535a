"""Properties of each loss that need no torch; ``radioplat.losses.registry`` has the functions.

A new loss is a name in :class:`LossType`, a line of :data:`LOSSES` here, and a line of ``registry.CRITERIA`` with its
function in ``radioplat/losses/terms``. Nothing else lists losses.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from radioplat.spec.schema.distill import Kind, LossType, Mode

_ANY_VECTOR = (Kind.summary, Kind.spatial)


class Binds(Enum):
    """Modules that a binding may compare by a loss."""

    any_modules = "any modules"
    detector_maps = "maps of two detectors"
    nothing = "nothing"


@dataclass(frozen=True)
class LossDefinition:
    """One loss.

    Attributes:
        name: its name in the spec.
        fits: kinds of teacher outputs that it can compare; empty for a loss of bindings only.
        default_mode: the meaning of ``mode: auto``.
        alias: its name in ``summary_loss_type`` and ``spatial_loss_type``, if different.
        by_position: it compares maps position by position, so focal weights are possible.
        groups: what it compares within a micro-batch: images, pairs or triplets of images.
        least_images, most_images: limits on the images of a micro-batch.
        keeps_statistics: it keeps statistics of the teacher's features over the steps of a run.
        binds: modules that a binding may compare by it.
        object_mask: it is masked by :func:`radioplat.losses.weighting.iou_mask.object_mask`.
    """

    name: LossType
    fits: tuple[Kind, ...]
    default_mode: Mode = Mode.spatial
    alias: str = ""
    by_position: bool = False
    groups: str = "images"
    least_images: int = 1
    most_images: int | None = None
    keeps_statistics: bool = False
    binds: Binds = Binds.any_modules
    object_mask: bool = False

    @property
    def maps_only(self) -> bool:
        """True if it compares maps only."""
        return self.fits == (Kind.spatial,)


def _vector(name: LossType, mode: Mode, alias: str = "") -> LossDefinition:
    return LossDefinition(name, _ANY_VECTOR, mode, alias, by_position=True)


# Messages list losses in this order.
LOSSES: dict[LossType, LossDefinition] = {
    definition.name: definition
    for definition in (
        LossDefinition(LossType.KL, (Kind.logits, Kind.summary), Mode.logits),
        LossDefinition(LossType.CE, (Kind.logits, Kind.summary), Mode.logits),
        _vector(LossType.BALANCED, Mode.spatial, "balanced"),
        _vector(LossType.MSE, Mode.spatial, "mse"),
        _vector(LossType.L1, Mode.summary),
        _vector(LossType.L2, Mode.summary),
        _vector(LossType.FD, Mode.summary),
        _vector(LossType.smooth_l1, Mode.summary),
        _vector(LossType.CS, Mode.summary, "cosine"),
        _vector(LossType.dampened_mse, Mode.spatial),
        LossDefinition(LossType.angle, (Kind.summary,), Mode.summary, keeps_statistics=True, binds=Binds.nothing),
        LossDefinition(
            LossType.tangent_sphere, (Kind.summary,), Mode.summary, keeps_statistics=True, binds=Binds.nothing
        ),
        LossDefinition(LossType.gram, (Kind.spatial,)),
        LossDefinition(LossType.channel_kl, (Kind.spatial,)),
        LossDefinition(LossType.attention, (Kind.spatial,)),
        LossDefinition(LossType.rkd_distance, _ANY_VECTOR, Mode.summary, groups="pairs", least_images=2),
        # A tensor of the triplets of 256 images has 67 MB, and several are needed.
        LossDefinition(
            LossType.rkd_angle, _ANY_VECTOR, Mode.summary, groups="triplets", least_images=3, most_images=256
        ),
        LossDefinition(LossType.similarity, _ANY_VECTOR, Mode.summary, groups="pairs", least_images=2),
        LossDefinition(LossType.phi_s, (), keeps_statistics=True, binds=Binds.detector_maps),
        LossDefinition(LossType.IOU, (), binds=Binds.detector_maps, object_mask=True),
    )
}


def definition_of(loss: LossType) -> LossDefinition:
    """Return the definition of ``loss``; a user's own function compares any vectors, position by position."""
    return LossDefinition(loss, tuple(Kind), by_position=True) if loss.is_own else LOSSES[loss]


def loss_named(name: str) -> LossType:
    """Return the loss named by ``summary_loss_type`` or ``spatial_loss_type``."""
    return next((loss for loss, definition in LOSSES.items() if definition.alias == name), None) or LossType(name)


def default_losses(kind: Kind) -> tuple[LossType, ...]:
    """Return the losses where the spec names none: of features, what each is and which of them are alike."""
    return (LossType.KL,) if kind is Kind.logits else (LossType.BALANCED, LossType.similarity)
