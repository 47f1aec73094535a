"""Form of each kind of target normalization: one scale, a scale per channel, or a matrix."""

from __future__ import annotations

from radioplat.models.target_space import CHANNELS, MATRIX, SCALAR
from radioplat.spec.schema.distill import TargetNormType

FORMS = {
    TargetNormType.none: SCALAR,
    TargetNormType.standardize: SCALAR,
    TargetNormType.standardize_channels: CHANNELS,
    TargetNormType.phi_s: MATRIX,
    TargetNormType.zca: MATRIX,
    TargetNormType.pca: MATRIX,
}
