"""Bytes to RGB pixels: JPEG by libjpeg-turbo at the scale that is needed, everything else by Pillow."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import simplejpeg
from PIL import Image

from radioplat.data.images.headers import ImageHeader, image_header, open_lazily
from radioplat.data.images.png_checksums import png_damage

MAX_PIXELS = 178_956_970  # the default of dataset.max_pixels
_BAND_PIXELS = 1 << 21  # that are converted at a time
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
        rgb, factor = _decode_pillow(data, header), 1
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


def _stored_size(header: ImageHeader) -> tuple[int, int]:
    """Width and height as a decoder gives them, not upright yet."""
    size = header.width, header.height
    return size if header.orientation < 5 else size[::-1]


def _require_size(size: tuple[int, int], header: ImageHeader) -> None:
    """Refuse an image that its decoder takes for another size than the header reader did, before it is decoded.

    ``max_pixels`` was compared with the header's size. A PNG with two headers, say, has the size of the first for a
    reader of headers and that of the last for Pillow.
    """
    if size != _stored_size(header):
        width, height = _stored_size(header)
        detail = f"the header says {width}x{height}, the decoder {size[0]}x{size[1]}"
        raise BadSample("size_mismatch", detail)


def _decode_jpeg(data: bytes, header: ImageHeader, factor: int, fast: bool) -> np.ndarray | None:
    """RGB at 1/factor of the size, or None where libjpeg-turbo refuses (CMYK, oddities, damage): Pillow then judges."""
    try:
        _require_size(simplejpeg.decode_jpeg_header(data)[1::-1], header)
        if factor == 1:
            return simplejpeg.decode_jpeg(data, "RGB", fastdct=fast, fastupsample=fast)
        width, height = (-(-side // factor) for side in _stored_size(header))
        return simplejpeg.decode_jpeg(data, "RGB", fast, fast, min_height=height, min_width=width, min_factor=factor)
    except (ValueError, RuntimeError):
        return None


def _decode_pillow(data: bytes, header: ImageHeader) -> np.ndarray:
    try:
        image = open_lazily(io.BytesIO(data))
        if image is None:
            raise BadSample("not_an_image")
        _require_size(image.size, header)
        image.load()
        return _to_rgb(image)
    except BadSample:
        raise
    except Image.DecompressionBombError as error:
        raise BadSample("too_many_pixels", str(error)) from None
    except Exception as error:  # decoders fail on damaged data in any way
        raise BadSample("corrupt_image", f"{type(error).__name__}: {error}") from None


def _bands(image: Image.Image) -> Iterator[tuple[slice, Image.Image]]:
    """``image`` in stretches of rows: what a conversion needs beside it and the result is then little."""
    rows = max(1, _BAND_PIXELS // image.width)
    for top in range(0, image.height, rows):
        bottom = min(top + rows, image.height)
        whole = rows >= image.height
        yield slice(top, bottom), image if whole else image.crop((0, top, image.width, bottom))


def _to_rgb(image: Image.Image) -> np.ndarray:
    """uint8 ``[h, w, 3]``."""
    white = _white(image) if image.mode in _DEEP_MODES else None
    rgb = np.empty((image.height, image.width, 3), np.uint8)
    for rows, band in _bands(image):
        if white is not None:
            values = np.asarray(band).astype(np.float64)
            rgb[rows] = np.rint(np.clip(values / white, 0, 1) * 255)[:, :, None]
        elif band.has_transparency_data:
            paper = Image.new("RGBA", band.size, "white")
            rgb[rows] = np.asarray(Image.alpha_composite(paper, band.convert("RGBA")).convert("RGB"))
        else:
            rgb[rows] = np.asarray(band if band.mode == "RGB" else band.convert("RGB"))
    return rgb


def _white(image: Image.Image) -> float:
    """The white of one deep channel. 32-bit files do not say theirs: the least usual one that holds the data."""
    top = 0.0
    for _, band in _bands(image):
        most = float(np.asarray(band).max(initial=0))
        if not np.isfinite(most) or not np.isfinite(np.asarray(band).min(initial=0)):
            raise BadSample("corrupt_image", "pixels that are not finite")
        top = max(top, most)
    whites = {"I": (65_535, 2**31 - 1), "F": (1, 255, 65_535, 2**31 - 1)}.get(image.mode, (65_535,))
    return next((w for w in whites if top <= w), top)


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
