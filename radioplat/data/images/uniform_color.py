"""TAO's uniform-colour filter: reject images of a single colour, at decode time since it needs the pixels."""

from __future__ import annotations

import numpy as np

from radioplat.data.images.decode import BadSample

REASON = "uniform_color"
TOLERANCE = 2  # of 255 levels between a channel's darkest and brightest pixel, for compression noise
_STRIDE = 16  # every 16th row and column is checked first


def refuse_uniform_color(rgb: np.ndarray) -> None:
    """Reject an image of a single colour, within :data:`TOLERANCE` for each channel.

    Args:
        rgb: uint8 ``[h, w, 3]``.

    Raises:
        BadSample: with reason :data:`REASON`; the sample stays in the order with weight 0.
    """
    if _is_uniform(rgb[::_STRIDE, ::_STRIDE]) and _is_uniform(rgb):  # the subset rules out nearly every image
        raise BadSample(REASON, "rgb {}, {}, {}".format(*rgb[0, 0].tolist()))


def _is_uniform(rgb: np.ndarray) -> bool:
    spread = rgb.max(axis=(0, 1)).astype(np.int16) - rgb.min(axis=(0, 1))
    return bool((spread <= TOLERANCE).all())
