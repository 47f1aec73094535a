"""Bytes to RGB pixels: JPEG by libjpeg-turbo at the scale that is needed, everything else by Pillow."""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
import simplejpeg
from PIL import Image

from radioplat.data.headers import ImageHeader, image_header, open_lazily
from radioplat.data.png import png_damage

MAX_PIXELS = 178_956_970  # the default of dataset.max_pixels
_DEEP_MODES = ("I;16", "I;16L", "I;16B", "I;16N", "I", "F")


class BadSample(Exception):
    """This image cannot be used; the run goes on without it.

    Attributes:
        reason: ``corrupt_image``, ``not_an_image``, ``too_many_pixels``, ``size_mismatch``, ``short_read``,
            ``shard_changed``, ``hash_mismatch``.
        detail: what the decoder said.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}" if self.detail else self.reason


@dataclass(frozen=True)
class Decoded:
    """A decoded image, upright.

    Attributes:
        rgb: uint8 ``[h, w, 3]``.
        width, height: source pixels at full resolution, upright.
        factor: source pixels per pixel of ``rgb``, along each axis: 1, 2, 4 or 8. Where it does not divide the size,
            the last column or row of ``rgb`` hangs over the edge of the source.
    """

    rgb: np.ndarray
    width: int
    height: int
    factor: int = 1


def decode_rgb(data: bytes, reduction: float = 1.0, max_pixels: int = MAX_PIXELS, fast: bool = False) -> Decoded:
    """Decode one image, upright (EXIF orientation applied), to 8-bit RGB.

    Grey, palette, CMYK and YCCK become RGB; 16-bit and deeper samples are scaled, not clipped; transparency is laid on
    white; of an animation the first frame is taken.

    Args:
        data: the encoded image.
        reduction: source pixels that one pixel may stand for, along each axis. A JPEG is then decoded at 1/2, 1/4 or
            1/8 of its size, whichever is the least that this allows; libjpeg-turbo has vector code for these alone.
        max_pixels: an image whose header says more is not decoded.
        fast: a JPEG may be decoded a tenth faster with less exact arithmetic; its pixels then lie at least 35 dB (PSNR)
            from those of the exact one.

    Raises:
        BadSample: the content is no image, is damaged or cut short, or is too large.
    """
    header = image_header(data)
    if header is None:
        raise BadSample("not_an_image")
    if header.width * header.height > max_pixels:
        raise BadSample("too_many_pixels", f"{header.width}x{header.height}")
    factor = _factor(header, reduction)
    rgb = _decode_jpeg(data, header, factor, fast) if header.format == "JPEG" else None
    if rgb is None:
        if header.format == "PNG" and (damage := png_damage(data)):
            raise BadSample("corrupt_image", damage)
        rgb, factor = _decode_pillow(data), 1
    rgb = _upright(rgb, header.orientation)
    if rgb.shape[:2] != (-(-header.height // factor), -(-header.width // factor)):
        says, has = f"{header.width}x{header.height}", f"{rgb.shape[1]}x{rgb.shape[0]}"
        raise BadSample("size_mismatch", f"the header says {says}, the pixels at 1/{factor} are {has}")
    return Decoded(rgb, header.width, header.height, factor)


def _factor(header: ImageHeader, reduction: float) -> int:
    if header.format != "JPEG":
        return 1
    for factor in (8, 4, 2):
        # A turned image would have the overhang of a size that does not divide at its left or top; rare, so not scaled.
        whole = header.width % factor == 0 and header.height % factor == 0
        if reduction >= factor and (whole or header.orientation == 1):
            return factor
    return 1


def _decode_jpeg(data: bytes, header: ImageHeader, factor: int, fast: bool) -> np.ndarray | None:
    """RGB at 1/factor of the size, or None where libjpeg-turbo refuses (CMYK, oddities, damage): Pillow then judges."""
    try:
        if factor == 1:
            return simplejpeg.decode_jpeg(data, "RGB", fastdct=fast, fastupsample=fast)
        height, width = -(-header.height // factor), -(-header.width // factor)
        if header.orientation > 4:  # the file lies on its side
            height, width = width, height
        return simplejpeg.decode_jpeg(data, "RGB", fast, fast, min_height=height, min_width=width, min_factor=factor)
    except (ValueError, RuntimeError):
        return None


def _decode_pillow(data: bytes) -> np.ndarray:
    try:
        image = open_lazily(io.BytesIO(data))
        if image is None:
            raise BadSample("not_an_image")
        image.load()
        return np.asarray(_to_rgb(image))
    except BadSample:
        raise
    except Image.DecompressionBombError as error:
        raise BadSample("too_many_pixels", str(error)) from None
    except Exception as error:  # decoders fail on damaged data in any way
        raise BadSample("corrupt_image", f"{type(error).__name__}: {error}") from None


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode in _DEEP_MODES:
        return _from_deep(image)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")


def _from_deep(image: Image.Image) -> Image.Image:
    """One deep channel to 8 bits. 32-bit files do not say their white: the least usual one that holds the data."""
    values = np.asarray(image).astype(np.float64)
    if not np.isfinite(values).all():
        raise BadSample("corrupt_image", "pixels that are not finite")
    whites = {"I": (65_535, 2**31 - 1), "F": (1, 255, 65_535, 2**31 - 1)}.get(image.mode, (65_535,))
    top = values.max(initial=0)
    white = next((w for w in whites if top <= w), top)
    return Image.fromarray(np.rint(np.clip(values / white, 0, 1) * 255).astype(np.uint8)).convert("RGB")


def _upright(rgb: np.ndarray, orientation: int) -> np.ndarray:
    """Undo the camera's orientation (EXIF 2.32, tag 274)."""
    match orientation:
        case 2:
            rgb = rgb[:, ::-1]
        case 3:
            rgb = rgb[::-1, ::-1]
        case 4:
            rgb = rgb[::-1]
        case 5:
            rgb = rgb.swapaxes(0, 1)
        case 6:
            rgb = np.rot90(rgb, -1)
        case 7:
            rgb = rgb[::-1, ::-1].swapaxes(0, 1)
        case 8:
            rgb = np.rot90(rgb)
    return rgb
