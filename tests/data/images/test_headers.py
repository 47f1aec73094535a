"""Sizes from headers, without decoding."""

from __future__ import annotations

import io
import struct
import warnings
import zlib

import numpy as np
import pytest
from PIL import Image

from radioplat.data.images.fast_headers import HEAD_BYTES, jpeg_size
from radioplat.data.images.headers import ImageHeader, image_header
from radioplat.data.scan.shard import scan_tar


class Counting(io.BytesIO):
    """Counts the bytes that are read."""

    taken = 0

    def read(self, *args):
        data = super().read(*args)
        self.taken += len(data)
        return data


@pytest.mark.parametrize("format", ["JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF"])
def test_the_size_of_each_format(photo, format):
    header = image_header(photo(70, 50, format))
    assert (header.width, header.height, header.format) == (70, 50, format)


def test_lossless_webp_and_webp_with_alpha(photo):
    assert image_header(photo(70, 50, "WEBP", lossless=True))[:2] == (70, 50)
    assert image_header(photo(70, 50, "WEBP", mode="RGBA"))[:2] == (70, 50)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_the_size_is_that_of_the_upright_image(photo, format, orientation):
    exif = Image.Exif()
    exif[274] = orientation
    header = image_header(photo(70, 50, format, exif=exif.tobytes()))
    assert (header.width, header.height) == ((50, 70) if orientation >= 5 else (70, 50))


def test_a_bomb_is_measured_without_a_warning(bomb_png):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert image_header(bomb_png) == (30_000, 30_000, "PNG", 1)


def test_no_pixels_are_read(photo):
    for format in ("JPEG", "PNG", "WEBP", "BMP"):
        stream = Counting(photo(800, 600, format))
        assert image_header(stream)[:2] == (800, 600)
        assert stream.taken < 4096, format


@pytest.mark.parametrize("data", [b"", b"some text", b"\xff\xd8\xff", b"RIFF\0\0\0\0WEBP", b"%!PS-Adobe EPSF", b"BM"])
def test_what_is_no_image_is_none(data):
    assert image_header(data) is None


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_damaged_exif_does_not_hide_the_size(photo):
    assert image_header(photo(70, 50, "JPEG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff"))[:2] == (70, 50)


def quick(data: bytes) -> tuple[int, int, int] | None:
    return jpeg_size(lambda offset, length: data[offset : offset + length], data[:HEAD_BYTES])


def pillows(data: bytes) -> tuple[int, int, int] | None:
    """Size and orientation as Pillow tells them, None where it refuses."""
    try:
        image = Image.open(io.BytesIO(data))
        turn = image.getexif().get(274, 1)
    except Exception:
        return None
    return (*image.size, turn if isinstance(turn, int) and 1 <= turn <= 8 else 1)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("save", [{}, {"progressive": True}, {"comment": b"x" * 900}, {"dpi": (72, 72)}])
def test_the_quick_header_agrees_with_pillow(photo, orientation, save):
    exif = Image.Exif()
    exif[274] = orientation
    for mode in ("RGB", "L", "CMYK"):
        data = photo(70, 50, mode=mode, exif=exif.tobytes(), **save)
        size = (70, 50) if orientation < 5 else (50, 70)
        assert quick(data) == (70, 50, orientation) == pillows(data)
        assert image_header(data) == ImageHeader(*size, "JPEG", orientation)


@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow's, of damaged EXIF blocks
def test_the_quick_header_says_what_pillow_says_of_damage_or_nothing(photo):
    rng = np.random.default_rng(1)
    data = np.frombuffer(photo(70, 50, exif=b"Exif\0\0MM\0*\0\0\0\x08\0\1\x01\x12\0\3\0\0\0\1\0\6\0\0\0\0"), np.uint8)
    assert image_header(data.tobytes()).orientation == 6
    for _ in range(2000):
        broken = data.copy()
        broken[rng.integers(0, 700, 3)] = rng.integers(0, 256, 3)
        found, expected = quick(broken.tobytes()), pillows(broken.tobytes())
        if found is not None and expected is not None:
            assert found == expected
    for cut in range(0, len(data), 7):
        assert quick(data[:cut].tobytes()) in (None, (70, 50, 6))


def png_header(width: int, height: int) -> bytes:
    chunk = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))


def test_a_side_that_the_index_cannot_hold_is_no_image(tmp_path, write_tar):
    """A row of the index has 32 bits for a side."""
    tiff = io.BytesIO()
    Image.new("L", (8, 8)).save(tiff, "TIFF")
    at = tiff.getvalue().index(b"\x01\x01\x04\x00")  # ImageLength, of 32 bits
    tall = tiff.getvalue()[: at + 8] + b"\xff" * 4 + tiff.getvalue()[at + 12 :]
    images = {"a.png": png_header(2**32 - 1, 8) + b"\0\0\0\0IDAT", "b.tiff": tall}
    assert [image_header(data) for data in images.values()] == [None, None]
    scan = scan_tar(str(write_tar(tmp_path / "a.tar", list(images.items()))))
    assert [fault.reason for fault in scan.faults] == ["not_an_image"] * 2
    assert image_header(png_header(2**31 - 1, 8) + b"\0\0\0\0IDAT").width == 2**31 - 1
