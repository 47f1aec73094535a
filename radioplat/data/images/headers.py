"""Size and format of an image from its first bytes; no pixel is decoded."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from typing import BinaryIO, NamedTuple

from PIL import Image
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from radioplat.data.images.fast_headers import HEAD_BYTES, exif_turn, jpeg_size, png_size

IMAGE_EXTENSIONS = frozenset({"jpg", "jpeg", "png", "gif", "webp", "bmp", "tiff", "img"})

# Formats are told by content, never by name, and only these are opened: Pillow knows some that run other programs.
_MAGIC = (
    (b"\xff\xd8\xff", JpegImageFile),
    (b"\x89PNG\r\n\x1a\n", PngImageFile),
    (b"GIF87a", GifImageFile),
    (b"GIF89a", GifImageFile),
    (b"BM", BmpImageFile),
    (b"II*\0", TiffImageFile),
    (b"MM\0*", TiffImageFile),
    (b"II+\0", TiffImageFile),
    (b"MM\0+", TiffImageFile),
)
_LONGEST_SIDE = 2**31 - 1  # as PNG has it, and the shard index; a TIFF can say more
_EXIF = b"Exif\0\0"  # what stands before an EXIF block, in some formats


class ImageHeader(NamedTuple):
    """What the header says.

    Attributes:
        width, height: pixels, after the EXIF orientation is applied.
        format: ``JPEG``, ``PNG``, ``GIF``, ``WEBP``, ``BMP`` or ``TIFF``.
        orientation: EXIF orientation, 1 to 8, still to be applied to what a decoder returns.
    """

    width: int
    height: int
    format: str
    orientation: int = 1


def image_header(data: bytes | BinaryIO) -> ImageHeader | None:
    """Read the header of one image, or return None if the content is no image in a known format.

    Args:
        data: the image, or a seekable stream of which only what is needed is read.
    """
    if isinstance(data, bytes):
        return header_at(lambda offset, length: data[offset : offset + length], lambda: io.BytesIO(data))

    def read(offset: int, length: int) -> bytes:
        data.seek(offset)
        return data.read(length)

    def again() -> BinaryIO:
        data.seek(0)
        return data

    return header_at(read, again)


def header_at(read: Callable[[int, int], bytes], stream: Callable[[], BinaryIO]) -> ImageHeader | None:
    """As :func:`image_header`, of an image that is read by offset.

    Args:
        read: ``read(offset, length)`` gives bytes of the image, fewer at its end.
        stream: opens it as a seekable stream, for the formats that Pillow reads.
    """
    start = read(0, HEAD_BYTES)
    if start[:3] == b"\xff\xd8\xff":
        name, found = "JPEG", jpeg_size(read, start)
    elif start[:8] == b"\x89PNG\r\n\x1a\n":
        name, found = "PNG", png_size(read, start)
    else:
        name, found = "", None
    if found is None:
        header = _careful_header(stream())
    else:
        width, height, turn = found
        header = ImageHeader(width, height, name, turn) if turn < 5 else ImageHeader(height, width, name, turn)
    return None if header is None or max(header.width, header.height) > _LONGEST_SIDE else header


def _careful_header(stream: BinaryIO) -> ImageHeader | None:
    try:
        # Pillow reads a WebP whole and makes a decoder with its canvas before it can tell the size.
        if _is_webp(stream):
            return _webp_header(stream)
        image = open_lazily(stream)
        if image is None:
            return None
        turn = 1 if image.format == "TIFF" else _orientation(image)  # Pillow itself turns a TIFF, size and pixels
        width, height = image.size if turn < 5 else image.size[::-1]
        if width < 1 or height < 1:
            return None
        return ImageHeader(width, height, str(image.format), turn)
    except Exception:  # a damaged header can make a parser fail in any way; each means the same to us
        return None


def open_lazily(stream: BinaryIO) -> Image.Image | None:
    """Pillow's image over ``stream`` before any pixel is decoded, or None if the format is unknown.

    As `PIL.Image.open`, but without its check of the size, which warns or raises by a process-wide setting: a size
    beyond our own limit is the filter's to reject.

    Raises:
        Exception: of any kind, if the header is damaged.
    """
    start = stream.read(12)
    stream.seek(0)
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return WebPImageFile(stream)
    for magic, kind in _MAGIC:
        if start.startswith(magic):
            return kind(stream)
    return None


def _orientation(image: Image.Image) -> int:
    """EXIF orientation, 1 if there is none. `Image.getexif` would decode a PNG to look behind its pixels."""
    block = image.info.get("exif")
    return exif_turn(block.removeprefix(_EXIF)) if isinstance(block, bytes) else 1


def _is_webp(stream: BinaryIO) -> bool:
    start = stream.read(12)
    stream.seek(0)
    return start[:4] == b"RIFF" and start[8:12] == b"WEBP"


def _webp_header(stream: BinaryIO) -> ImageHeader | None:
    """Canvas size from the first chunk: RFC 9649, sections 2.5 to 2.7."""
    head = stream.read(30)
    if len(head) < 30:
        return None
    chunk, turn = head[12:16], 1
    if chunk == b"VP8X":
        width = 1 + int.from_bytes(head[24:27], "little")
        height = 1 + int.from_bytes(head[27:30], "little")
        if head[20] & 0x08:
            turn = exif_turn(_webp_chunk(stream, b"EXIF").removeprefix(_EXIF))
    elif chunk == b"VP8 " and head[23:26] == b"\x9d\x01\x2a":
        width, height = (n & 0x3FFF for n in struct.unpack("<HH", head[26:30]))
    elif chunk == b"VP8L" and head[20] == 0x2F:
        bits = int.from_bytes(head[21:25], "little")
        width, height = 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    else:
        return None
    if not width or not height:
        return None
    if turn >= 5:
        width, height = height, width
    return ImageHeader(width, height, "WEBP", turn)


def _webp_chunk(stream: BinaryIO, name: bytes) -> bytes:
    place = 12
    while True:
        stream.seek(place)
        head = stream.read(8)
        if len(head) < 8:
            return b""
        length = int.from_bytes(head[4:], "little")
        if head[:4] == name:
            return stream.read(length)
        place += 8 + length + length % 2  # chunks are padded to even lengths
