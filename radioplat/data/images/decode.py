"""Decode images to RGB: JPEG by libjpeg-turbo, at a reduced size where that suffices, all other formats by Pillow.

Formats other than JPEG are decoded in a process apart (:mod:`radioplat.data.images.decoder_pool`), which calls
:func:`checked_header` and :func:`rgb_bands` of this module.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import simplejpeg
from PIL import Image

from radioplat.data.images import decoder_pool
from radioplat.data.images.headers import JPEG_START, ImageHeader, image_header, open_lazily
from radioplat.data.images.png_checksums import png_damage

MAX_PIXELS = 178_956_970  # the default of dataset.max_pixels
_BAND_PIXELS = 1 << 20  # pixels converted at a time
# Bytes of memory for a pixel, the result's three included, where decoders need more than the 8 that any image may take:
# libwebp's animation decoder has two canvases and Pillow copies its frame twice; a TIFF may be a single strip.
_BYTES = {"WEBP": 20, "TIFF": 16}
_NO_MEMORY = "decoder error -9"  # Pillow's words where an allocation in one of its decoders failed
# Of a JPEG: each scan may take 1.2 ns of CPU time for a pixel and needs some 100 bytes; real ones have at most a dozen.
_MOST_SCANS, _SCAN = 500, b"\xff\xda"
_DEEP_MODES = ("I;16", "I;16L", "I;16B", "I;16N", "I", "F")


class BadSample(Exception):
    """An image that cannot be used; the run continues without it.

    Attributes:
        reason: ``corrupt_image``, ``not_an_image``, ``not_a_file``, ``too_many_pixels``, ``too_slow``,
            ``size_mismatch``, ``short_read``, ``shard_changed``, ``hash_mismatch``, ``uniform_color``.
        detail: the decoder's message.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}" if self.detail else self.reason


@dataclass(frozen=True)
class Decoded:
    """A decoded image with its EXIF orientation applied.

    Attributes:
        rgb: uint8 ``[h, w, 3]``.
        width, height: size of the source at full resolution, in pixels, orientation applied.
        factor: source pixels per pixel of ``rgb``, along each axis: 1, 2, 4 or 8. Where it does not divide the size,
            the last column or row of ``rgb`` extends beyond the edge of the source.
    """

    rgb: np.ndarray
    width: int
    height: int
    factor: int = 1


def decode_rgb(data: bytes, reduction: float = 1.0, max_pixels: int = MAX_PIXELS, fast: bool = False) -> Decoded:
    """Decode one image to 8-bit RGB and apply its EXIF orientation.

    Grey, palette, CMYK and YCCK become RGB; 16-bit and deeper samples are scaled, not clipped; transparency is blended
    with white; of an animation the first frame is decoded.

    Args:
        data: the encoded image.
        reduction: the largest allowed number of source pixels per decoded pixel, along each axis. A JPEG is decoded at
            the smallest of the sizes 1/8, 1/4, 1/2 and 1 that respects it; only these have vector code in
            libjpeg-turbo.
        max_pixels: an image whose header names more pixels is not decoded, nor one whose decoder may need more than
            8 bytes for each of so many pixels, and 64 MB.
        fast: decode a JPEG about 10 % faster with less exact arithmetic; the PSNR against exact decoding is at least
            35 dB.

    Raises:
        BadSample: the content is no image, is damaged or cut short, is too large, or takes too long.
        DecoderError: no process that decodes formats other than JPEG can be started.
    """
    if not data.startswith(JPEG_START):
        answer = decoder_pool.decode(data, max_pixels)
        if isinstance(answer, decoder_pool.Refusal):
            raise BadSample(*answer)
        return _decoded(answer.rgb, answer.header, 1)
    header = checked_header(data, max_pixels)
    if data.count(_SCAN) > _MOST_SCANS:
        raise BadSample("too_slow", f"a JPEG of more than {_MOST_SCANS} scans")
    factor = _factor(header, reduction)
    rgb = _decode_jpeg(data, header, factor, fast)
    if rgb is None:
        rgb, factor = _assembled(rgb_bands(io.BytesIO(data), header), header), 1
    return _decoded(rgb, header, factor)


def checked_header(data: bytes | io.BytesIO, max_pixels: int) -> ImageHeader:
    """Read the header of an image that may be decoded.

    Raises:
        BadSample: it is no image, or too large; see :func:`decode_rgb`.
    """
    header = image_header(data)
    if header is None:
        raise BadSample("not_an_image")
    if header.width * header.height > max_pixels:
        raise BadSample("too_many_pixels", f"{header.width}x{header.height}")
    if header.width * header.height * _BYTES.get(header.format, 0) > decoder_pool.most_memory(max_pixels):
        detail = f"{header.width}x{header.height}, which takes {_BYTES[header.format]} bytes each as {header.format}"
        raise BadSample("too_many_pixels", detail)
    return header


def _decoded(rgb: np.ndarray, header: ImageHeader, factor: int) -> Decoded:
    rgb = _upright(rgb, header.orientation)
    if rgb.shape[:2] != (-(-header.height // factor), -(-header.width // factor)):
        size, decoded = f"{header.width}x{header.height}", f"{rgb.shape[1]}x{rgb.shape[0]}"
        raise BadSample("size_mismatch", f"the header names {size}, the pixels at 1/{factor} are {decoded}")
    return Decoded(rgb, header.width, header.height, factor)


def _factor(header: ImageHeader, reduction: float) -> int:
    for factor in (8, 4, 2):
        # In a rotated image the partial last column or row would end up at the left or top; rare, so not reduced.
        divisible = header.width % factor == 0 and header.height % factor == 0
        if reduction >= factor and (divisible or header.orientation == 1):
            return factor
    return 1


def _require_size(size: tuple[int, int], header: ImageHeader) -> None:
    """Reject an image whose decoder reads another size than the header reader did, before it is decoded.

    ``max_pixels`` was compared with the size that the header reader returned. Of a PNG with two headers, for example,
    the header reader uses the first and Pillow the last.
    """
    if size != header.stored_size:
        width, height = header.stored_size
        detail = f"the header names {width}x{height}, the decoder {size[0]}x{size[1]}"
        raise BadSample("size_mismatch", detail)


def _decode_jpeg(data: bytes, header: ImageHeader, factor: int, fast: bool) -> np.ndarray | None:
    """Decode RGB at 1/factor of the size; return None if libjpeg-turbo fails (CMYK, rare variants, damage)."""
    try:
        _require_size(simplejpeg.decode_jpeg_header(data)[1::-1], header)
        if factor == 1:
            return simplejpeg.decode_jpeg(data, "RGB", fastdct=fast, fastupsample=fast)
        width, height = (-(-side // factor) for side in header.stored_size)
        return simplejpeg.decode_jpeg(data, "RGB", fast, fast, min_height=height, min_width=width, min_factor=factor)
    except (ValueError, RuntimeError):
        return None


def _assembled(bands: Iterator[np.ndarray], header: ImageHeader) -> np.ndarray:
    width, height = header.stored_size
    rgb, top = np.empty((height, width, 3), np.uint8), 0
    for band in bands:
        rgb[top : top + len(band)] = band
        top += len(band)
    return rgb


def rgb_bands(stream: io.BytesIO, header: ImageHeader) -> Iterator[np.ndarray]:
    """Decode an image of any format with Pillow; yield its rows from the top, as uint8 ``[rows, width, 3]``.

    The rows have the size ``header.stored_size``; the EXIF orientation is not applied.

    Args:
        stream: the encoded image; closed when all pixels are decoded, so that its memory can be freed.

    Raises:
        BadSample: see :func:`decode_rgb`.
    """
    with _bad_samples():
        if header.format == "PNG" and (damage := png_damage(stream.getbuffer())):
            raise BadSample("corrupt_image", damage)
        image = open_lazily(stream)
        if image is None:
            raise BadSample("not_an_image")
        _require_size(image.size, header)
        image.load()
        _require_size(image.size, header)
        stream.close()
        yield from _to_rgb(image)


@contextlib.contextmanager
def _bad_samples() -> Iterator[None]:
    """Raise what Pillow raises on damaged data as :class:`BadSample`."""
    try:
        yield
    except BadSample:
        raise
    except Image.DecompressionBombError as error:
        raise BadSample("too_many_pixels", str(error)) from None
    except Exception as error:  # Pillow's decoders raise many exception types on damaged data
        if isinstance(error, MemoryError) or str(error) == _NO_MEMORY:
            raise BadSample(*decoder_pool.OVER_MEMORY) from None
        raise BadSample("corrupt_image", f"{type(error).__name__}: {error}") from None


def _bands(image: Image.Image) -> Iterator[Image.Image]:
    """Yield ``image`` in bands of rows, so that a conversion needs little extra memory."""
    rows = max(1, _BAND_PIXELS // image.width)
    for top in range(0, image.height, rows):
        yield image if rows >= image.height else image.crop((0, top, image.width, min(top + rows, image.height)))


def _to_rgb(image: Image.Image) -> Iterator[np.ndarray]:
    """Convert any mode to uint8 ``[h, w, 3]``, in bands of rows."""
    white = _white(image) if image.mode in _DEEP_MODES else None
    for band in _bands(image):
        if white is not None:
            grey = np.rint(np.clip(np.asarray(band).astype(np.float64) / white, 0, 1) * 255).astype(np.uint8)
            yield np.repeat(grey[:, :, None], 3, 2)
        elif band.has_transparency_data:
            paper = Image.new("RGBA", band.size, "white")
            yield np.asarray(Image.alpha_composite(paper, band.convert("RGBA")).convert("RGB"))
        else:
            yield np.asarray(band if band.mode == "RGB" else band.convert("RGB"))


def _white(image: Image.Image) -> float:
    """Return the value that means white in a single-channel deep image.

    32-bit files do not declare it: the smallest common maximum that is not below the data.
    """
    top = 0.0
    for band in _bands(image):
        largest = float(np.asarray(band).max(initial=0))
        if not np.isfinite(largest) or not np.isfinite(np.asarray(band).min(initial=0)):
            raise BadSample("corrupt_image", "pixels that are not finite")
        top = max(top, largest)
    whites = {"I": (65_535, 2**31 - 1), "F": (1, 255, 65_535, 2**31 - 1)}.get(image.mode, (65_535,))
    return next((w for w in whites if top <= w), top)


def _upright(rgb: np.ndarray, orientation: int) -> np.ndarray:
    """Apply the EXIF orientation (EXIF 2.32, tag 274): a transposition, then flips along the two axes."""
    if orientation >= 5:
        rgb = rgb.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        rgb = rgb[::-1]
    return rgb[:, ::-1] if orientation in (2, 3, 6, 7) else rgb
