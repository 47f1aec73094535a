"""Resize a part of an image with a triangle filter over the pixels that are merged.

By cykooz-resizer, which uses the vector units of the CPU, or by Pillow's bilinear where it has no wheels (Linux on
aarch64): the same filter, whose sums are rounded elsewhere, so values differ by one in 255 at most.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from PIL import Image

try:
    import cykooz_resizer as _fast
except ImportError:  # pragma: no cover - depends on the platform
    _fast = None
Corners = tuple[float, float, float, float]
_local = threading.local()  # one Resizer for each thread, since it has buffers and a lock


def resize(pixels: np.ndarray, box: Corners, size: tuple[int, int]) -> np.ndarray:
    """Return ``box`` of an image in ``size`` (width, height): uint8 HWC.

    Args:
        pixels: uint8 HWC; the filter uses all of it, also what is beyond the box.
        box: left, top, right and bottom inside of it, in pixels.
    """
    return resize_by_pillow(pixels, box, size) if _fast is None else _resize_fast(pixels, box, size)


def resize_by_pillow(pixels: np.ndarray, box: Corners, size: tuple[int, int]) -> np.ndarray:
    """Resize as :func:`resize`, without cykooz-resizer."""
    resized = Image.fromarray(np.ascontiguousarray(pixels)).resize(size, Image.Resampling.BILINEAR, box=box)
    return np.asarray(resized)


def _resize_fast(pixels: np.ndarray, box: Corners, size: tuple[int, int]) -> np.ndarray:
    height, width = pixels.shape[:2]
    source = _fast.ImageData(width, height, _fast.PixelType.U8x3, pixels.tobytes())
    out = _fast.ImageData(*size, _fast.PixelType.U8x3)
    left, top, right, bottom = box
    crop = _fast.CropBox(left, top, right - left, bottom - top)
    triangle = _fast.ResizeAlg.convolution(_fast.FilterType.bilinear)
    _resizer().resize(source, out, _fast.ResizeOptions(triangle, crop_box=crop))
    return np.frombuffer(out.get_buffer(), np.uint8).reshape(size[1], size[0], 3)


def _resizer() -> Any:  # noqa: ANN401
    if not hasattr(_local, "resizer"):
        _local.resizer = _fast.Resizer()
    return _local.resizer
