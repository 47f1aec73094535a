"""Read size and orientation of a JPEG or PNG from its first bytes, about twenty times faster than Pillow.

Each function returns None for an unusual or damaged header; the caller then uses Pillow.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable

Read = Callable[[int, int], bytes]
_FRAMES = frozenset({0xC0, 0xC1, 0xC2, 0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF})
_WITHOUT_LENGTH = frozenset({0x01, *range(0xD0, 0xD9)})  # markers that have no length field
HEAD_BYTES = 320  # most JPEGs have their size within so many bytes
_ORIENTATION = 274  # EXIF tag


def jpeg_size(read: Read, data: bytes) -> tuple[int, int, int] | None:
    """Return width and height as stored, and the EXIF orientation (ITU-T T.81, annex B; Exif 2.32).

    Args:
        read: ``read(offset, length)`` returns bytes of the image, fewer at its end.
        data: the image's first :data:`HEAD_BYTES` bytes, or all if it is shorter.
    """
    place, orientation, has_exif, start = 2, 1, False, 0
    while True:
        at = place - start
        if at + 10 > len(data):
            start, data, at = place, read(place, HEAD_BYTES), 0
            if len(data) < 10:
                return None
        if data[at] != 0xFF:
            return None
        marker = data[at + 1]
        if marker in _FRAMES:
            height, width = data[at + 5] << 8 | data[at + 6], data[at + 7] << 8 | data[at + 8]
            usual = data[at + 4] == 8 and data[at + 9] in (1, 3, 4) and width and height
            return (width, height, orientation) if usual else None
        if marker >= 0xDB:  # with a length; 0xFF is a fill byte
            if marker == 0xFF:
                place += 1
                continue
            length = data[at + 2] << 8 | data[at + 3]
            if length < 2:
                return None
            if marker == 0xE1 and not has_exif and data[at + 4 : at + 10] == b"Exif\0\0":
                orientation, has_exif = exif_orientation(read(place + 10, length - 8)), True
            place += 2 + length
        elif marker in _WITHOUT_LENGTH:
            place += 2
        elif marker in (0xC4, 0xC8, 0xCC):
            place += 2 + (data[at + 2] << 8 | data[at + 3])
        else:  # the image data begins or ends before a size field, or this is no marker
            return None


def png_size(read: Read, data: bytes) -> tuple[int, int, int] | None:
    """Return width, height and EXIF orientation, as :func:`jpeg_size` (PNG, third edition, sections 5 and 11)."""
    head = data[:33]
    if len(head) < 33 or head[8:16] != b"\0\0\0\rIHDR" or zlib.crc32(head[12:29]) != int.from_bytes(head[29:33]):
        return None
    width, height = struct.unpack_from(">II", head, 16)
    place, orientation = 33, 1
    while True:
        head = read(place, 8)
        length, kind = int.from_bytes(head[:4]), head[4:]
        if kind == b"IDAT":
            return (width, height, orientation) if width and height else None
        if len(head) < 8 or length >= 1 << 31 or not kind.isalpha():
            return None
        if kind == b"eXIf":
            orientation = exif_orientation(read(place + 8, length))
        place += 12 + length


def exif_orientation(block: bytes) -> int:
    """Read the orientation from an EXIF (TIFF) block; return 1 if there is none or the block is damaged."""
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(block[:4])
    if order is None:
        return 1
    try:
        (start,) = struct.unpack_from(order + "I", block, 4)
        (count,) = struct.unpack_from(order + "H", block, start)
        for at in range(start + 2, start + 2 + 12 * count, 12):
            tag, kind, number, value = struct.unpack_from(order + "HHIH", block, at)
            if tag == _ORIENTATION:
                return value if kind == 3 and number == 1 and 1 <= value <= 8 else 1
    except struct.error:
        pass
    return 1
