"""Read the size and format of an image from its first bytes; no pixel is decoded."""

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

from radioplat.data.images.fast_headers import HEAD_BYTES, exif_orientation, jpeg_size, png_size

JPEG_START = b"\xff\xd8\xff"
IMAGE_EXTENSIONS = frozenset({"jpg", "jpeg", "png", "gif", "webp", "bmp", "tiff", "img"})

# A format is recognized by content, never by name, and only these are opened: some of Pillow's run other programs.
_MAGIC = (
    (JPEG_START, JpegImageFile),
    (b"\x89PNG\r\n\x1a\n", PngImageFile),
    (b"GIF87a", GifImageFile),
    (b"GIF89a", GifImageFile),
    (b"BM", BmpImageFile),
    (b"II*\0", TiffImageFile),
    (b"MM\0*", TiffImageFile),
    (b"II+\0", TiffImageFile),
    (b"MM\0+", TiffImageFile),
)
_LONGEST_SIDE = 2**31 - 1  # limit of PNG and of the shard index; a TIFF header allows more
_EXIF = b"Exif\0\0"  # prefix of an EXIF block in some formats


class ImageHeader(NamedTuple):
    """Size, format and orientation of one image.

    Attributes:
        width, height: pixels, after the EXIF orientation is applied.
        format: ``JPEG``, ``PNG``, ``GIF``, ``WEBP``, ``BMP`` or ``TIFF``.
        orientation: EXIF orientation, 1 to 8, to be applied to the decoded pixels.
    """

    width: int
    height: int
    format: str
    orientation: int = 1

    @property
    def stored_size(self) -> tuple[int, int]:
        """Width and height as stored, before the orientation is applied, in pixels."""
        return (self.width, self.height) if self.orientation < 5 else (self.height, self.width)

    @property
    def most_bytes(self) -> int:
        """Encoded bytes that such an image may have: 16 for a pixel, four fp32 channels, and 64 MB for metadata."""
        return 16 * self.width * self.height + 64 * 2**20


def image_header(data: bytes | BinaryIO) -> ImageHeader | None:
    """Read the header of one image, or return None if the content is no image in a known format.

    Args:
        data: the image, or a seekable stream, of which only the needed bytes are read.
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
    """Read the header of an image by random access; see :func:`image_header`.

    Args:
        read: ``read(offset, length)`` returns bytes of the image, fewer at its end.
        stream: opens the image as a seekable stream, for the formats that Pillow reads.
    """
    start = read(0, HEAD_BYTES)
    if start[:3] == JPEG_START:
        name, size = "JPEG", jpeg_size(read, start)
    elif start[:8] == b"\x89PNG\r\n\x1a\n":
        name, size = "PNG", png_size(read, start)
    else:
        name, size = "", None
    if size is None:
        header = _pillow_header(stream())
    else:
        header = _upright_header(*size[:2], name, size[2])
    return None if header is None or max(header.width, header.height) > _LONGEST_SIDE else header


def _upright_header(width: int, height: int, name: str, orientation: int) -> ImageHeader:
    """Return the header of an image stored as ``width x height``; orientations 5 to 8 swap the sides."""
    if orientation >= 5:
        width, height = height, width
    return ImageHeader(width, height, name, orientation)


def _pillow_header(stream: BinaryIO) -> ImageHeader | None:
    try:
        # Pillow reads a whole WebP and allocates a decoder for its canvas before it returns the size.
        if _is_webp(_head(stream)):
            return _webp_header(stream)
        image = open_lazily(stream)
        if image is None or min(image.size) < 1:
            return None
        orientation = 1 if image.format == "TIFF" else _orientation(image)  # Pillow applies a TIFF's orientation itself
        width, height = image.size
        return _upright_header(width, height, str(image.format), orientation)
    except Exception:  # Pillow's parsers raise many exception types on damaged headers
        return None


def open_lazily(stream: BinaryIO) -> Image.Image | None:
    """Open ``stream`` with Pillow without decoding pixels; return None if the format is unknown.

    Unlike `PIL.Image.open` it does not check the size, which warns or raises by a process-wide setting;
    ``dataset.max_pixels`` is applied by the filters.

    Raises:
        Exception: of any kind, if the header is damaged.
    """
    start = _head(stream)
    if _is_webp(start):
        return WebPImageFile(stream)
    for magic, kind in _MAGIC:
        if start.startswith(magic):
            return kind(stream)
    return None


def _orientation(image: Image.Image) -> int:
    """Return the EXIF orientation, 1 if there is none. `Image.getexif` would decode a PNG up to its end."""
    block = image.info.get("exif")
    return exif_orientation(block.removeprefix(_EXIF)) if isinstance(block, bytes) else 1


def _head(stream: BinaryIO) -> bytes:
    """Read the first 12 bytes and return to the start."""
    start = stream.read(12)
    stream.seek(0)
    return start


def _is_webp(start: bytes) -> bool:
    return start[:4] == b"RIFF" and start[8:12] == b"WEBP"


def _webp_header(stream: BinaryIO) -> ImageHeader | None:
    """Read the canvas size from the first chunk (RFC 9649, sections 2.5 to 2.7)."""
    head = stream.read(30)
    if len(head) < 30:
        return None
    chunk, orientation = head[12:16], 1
    if chunk == b"VP8X":
        width = 1 + int.from_bytes(head[24:27], "little")
        height = 1 + int.from_bytes(head[27:30], "little")
        if head[20] & 0x08:
            orientation = exif_orientation(_webp_chunk(stream, b"EXIF").removeprefix(_EXIF))
    elif chunk == b"VP8 " and head[23:26] == b"\x9d\x01\x2a":
        width, height = (n & 0x3FFF for n in struct.unpack("<HH", head[26:30]))
    elif chunk == b"VP8L" and head[20] == 0x2F:
        bits = int.from_bytes(head[21:25], "little")
        width, height = 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    else:
        return None
    return _upright_header(width, height, "WEBP", orientation) if width and height else None


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
