"""TAO's uniform-colour filter: an image of one colour teaches nothing. Only its pixels tell, so it is met at decode."""

from __future__ import annotations

import numpy as np

from radioplat.data.images.decode import BadSample

REASON = "uniform_color"
TOLERANCE = (
    2  # levels of 255 between the darkest and the brightest pixel of a channel: what coding leaves of one colour
)
_GLANCE = 16  # every so manieth row and column is looked at first


def refuse_uniform_color(rgb: np.ndarray) -> None:
    """Refuse an image each of whose channels is one value, but for :data:`TOLERANCE`.

    Args:
        rgb: uint8 ``[h, w, 3]``.

    Raises:
        BadSample: with reason :data:`REASON`; its place in the order stays, with weight zero.
    """
    # Nearly every image ends here; the whole is only looked at where a few pixels are alike.
    if not _is_uniform(rgb[::_GLANCE, ::_GLANCE]) or not _is_uniform(rgb):
        return
    raise BadSample(REASON, "rgb {}, {}, {}".format(*rgb[0, 0].tolist()))


def _is_uniform(rgb: np.ndarray) -> bool:
    spread = rgb.max(axis=(0, 1)).astype(np.int16) - rgb.min(axis=(0, 1))
    return bool((spread <= TOLERANCE).all())
