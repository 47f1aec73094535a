"""Every kind of image becomes upright 8-bit RGB, or a reason."""

from __future__ import annotations

import io
import re
import struct
import subprocess
import sys
import tracemalloc
import warnings
import zlib
from collections import Counter

import numpy as np
import pytest
from PIL import Image, ImageOps

from radioplat.data.images.decode import BadSample, decode_rgb


def encode(image: Image.Image, format: str, **save) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **save)
    return buffer.getvalue()


def reason(data: bytes, **kw) -> str:
    with pytest.raises(BadSample) as caught:
        decode_rgb(data, **kw)
    return caught.value.reason


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "BMP", "TIFF"])
def test_pixels_agree_with_pillow(photo, format):
    data = photo(80, 60, format)
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    got = decode_rgb(data)
    assert got.rgb.dtype == np.uint8 and (got.width, got.height, got.factor) == (80, 60, 1)
    assert np.abs(got.rgb.astype(int) - expected).max() <= (2 if format == "JPEG" else 0)


@pytest.mark.parametrize("reduction, factor", [(20, 8), (8, 8), (7.9, 4), (4, 4), (3, 2), (1.99, 1), (1, 1), (0.5, 1)])
def test_a_jpeg_is_decoded_no_larger_than_needed(photo, reduction, factor):
    got = decode_rgb(photo(161, 121), reduction)
    assert got.factor == factor and (got.width, got.height) == (161, 121)
    assert got.rgb.shape == (-(-121 // factor), -(-161 // factor), 3)


def test_a_scaled_jpeg_is_the_image_averaged(photo):
    data = photo(160, 120, name="coffee.png")
    whole = decode_rgb(data).rgb.astype(float)
    small = decode_rgb(data, 4).rgb.astype(float)
    assert np.abs(whole.reshape(30, 4, 40, 4, 3).mean((1, 3)) - small).mean() < 3


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_applied_as_pillow_does(photo, format, orientation):
    exif = Image.Exif()
    exif[274] = orientation
    data = photo(80, 60, format, exif=exif.tobytes())
    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))
    got = decode_rgb(data)
    assert (got.height, got.width) == got.rgb.shape[:2] == expected.shape[:2]
    assert np.abs(got.rgb.astype(int) - expected).mean() < 1
    scaled = decode_rgb(data, 60)
    assert scaled.factor == (1 if format != "JPEG" else 8 if orientation == 1 else 4)  # 60 is no multiple of 8


def test_cmyk_jpeg(photo):
    plain, cmyk = photo(80, 60), photo(80, 60, mode="CMYK")
    assert Image.open(io.BytesIO(cmyk)).mode == "CMYK"
    assert np.abs(decode_rgb(cmyk).rgb.astype(int) - decode_rgb(plain).rgb).mean() < 6


def test_sixteen_bits_are_scaled_not_clipped():
    ramp = np.linspace(0, 65535, 256).round().astype(np.uint16)[None].repeat(4, 0)
    for format in ("PNG", "TIFF"):
        got = decode_rgb(encode(Image.fromarray(ramp), format)).rgb
        assert (got == np.arange(256)[None, :, None]).all(), format


def test_floats_and_wide_integers_are_scaled():
    ramp = np.arange(256, dtype=np.float32)[None].repeat(4, 0)
    for values in (ramp / 255, ramp, ramp * 257, (ramp * 257).astype(np.int32)):
        assert (decode_rgb(encode(Image.fromarray(values), "TIFF")).rgb == np.arange(256)[None, :, None]).all()


def test_transparency_is_laid_on_white(photo):
    image = Image.new("RGBA", (4, 4), (255, 0, 0, 0))
    image.putpixel((0, 0), (255, 0, 0, 255))
    for data in (encode(image, "PNG"), encode(image, "WEBP", lossless=True)):
        got = decode_rgb(data).rgb
        assert got[0, 0].tolist() == [255, 0, 0] and got[1, 1].tolist() == [255] * 3
    palette = Image.new("P", (4, 4), 0)
    palette.putpalette([9, 9, 9, 0, 0, 255])
    palette.putpixel((0, 0), 1)
    got = decode_rgb(encode(palette, "PNG", transparency=0)).rgb
    assert got[0, 0].tolist() == [0, 0, 255] and got[1, 1].tolist() == [255] * 3


def test_grey_bilevel_and_palette(photo):
    for mode in ("L", "1", "P", "LA"):
        got = decode_rgb(photo(40, 30, "PNG", mode=mode)).rgb
        assert got.shape == (30, 40, 3) and got.std() > 10
    assert decode_rgb(photo(40, 30, "JPEG", mode="L")).rgb.shape == (30, 40, 3)


def test_the_first_frame_of_an_animation():
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    for format, extra in (("GIF", {}), ("WEBP", {"lossless": True}), ("PNG", {})):
        data = encode(frames[0], format, save_all=True, append_images=frames[1:], **extra)
        assert decode_rgb(data).rgb[4, 4].tolist() == [255, 0, 0], format


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF", "BMP"])
@pytest.mark.parametrize("keep", [0.3, 0.6, 0.9])
def test_a_truncated_image_is_a_reason(photo, format, keep):
    data = photo(80, 60, format)
    assert reason(data[: int(len(data) * keep)]) in ("corrupt_image", "not_an_image")


def test_no_damage_escapes_as_another_exception(photo):
    rng = np.random.default_rng(0)
    formats, outcomes = ("JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF"), Counter[tuple[str, str]]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for format in formats:
            data = np.frombuffer(photo(40, 30, format), np.uint8)
            for _ in range(40):
                broken = data.copy()
                broken[rng.integers(0, min(len(data), 400), 6)] = rng.integers(0, 256, 6)
                try:
                    decode_rgb(broken.tobytes(), 8, max_pixels=10_000_000)
                    outcomes[format, "decoded"] += 1
                except BadSample:
                    outcomes[format, "refused"] += 1
    # Every format has met both: the damage is neither always harmless nor always in the first bytes.
    assert outcomes.total() == 240 and all(outcomes[format, "refused"] for format in formats), outcomes


def test_a_bomb_is_never_decoded(bomb_png):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert reason(bomb_png) == "too_many_pixels"
    assert reason(b"plain text") == "not_an_image"


def test_the_limit_is_inclusive(photo):
    assert decode_rgb(photo(8, 8, "PNG"), max_pixels=64).width == 8
    assert reason(photo(8, 8, "PNG"), max_pixels=63) == "too_many_pixels"


def png(width: int, height: int, depth: int, *earlier: tuple[int, int]) -> bytes:
    """A black grey PNG, with headers of other sizes before its own."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    sizes = [struct.pack(">IIBBBBB", w, h, depth, 0, 0, 0, 0) for w, h in (*earlier, (width, height))]
    packer = zlib.compressobj(1)
    pixels = b"".join(packer.compress(bytes(1 + width * depth // 8)) for _ in range(height)) + packer.flush()
    headers = b"".join(chunk(b"IHDR", size) for size in sizes)
    return b"\x89PNG\r\n\x1a\n" + headers + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


# Not `ru_maxrss`, which begins at the peak of the process that started this one. The largest sum over this process and
# the one in which it decodes is sampled; of each alone, the peak is known.
APART = """
import io, sys, threading, time, psutil
from pathlib import Path
from PIL import Image
from radioplat.data.images.decode import BadSample, decode_rgb

def status(name):
    found = []
    for process in processes:
        line = next(line for line in open(f"/proc/{process.pid}/status") if line.startswith(name))
        found.append(int(line.split()[1]) * 1024)
    return found

small = io.BytesIO()
Image.new("L", (1, 1)).save(small, "BMP")
decode_rgb(small.getvalue())
data = Path(sys.argv[1]).read_bytes()
processes = [psutil.Process(), *psutil.Process().children()]
for process in processes:
    Path(f"/proc/{process.pid}/clear_refs").write_text("5")  # its peak begins anew
sums, done = [], threading.Event()
def sample():
    while not done.wait(0.001):
        sums.append(sum(status("VmRSS")))
before, outcome = status("VmRSS"), "decoded"
thread = threading.Thread(target=sample)
thread.start()
try:
    rgb = decode_rgb(data, max_pixels=int(sys.argv[2]))
except BadSample as error:
    outcome = error.reason
done.set()
thread.join()
peaks = [peak - start for peak, start in zip(status("VmHWM"), before)]
print(outcome, max(*peaks, max(sums, default=0) - sum(before)), len(processes))
"""


def decoded_apart(path, max_pixels: int) -> tuple[str, int]:
    """``decoded`` or the reason why not, and by how many bytes the memory of both processes grew."""
    command = [sys.executable, "-c", APART, path, str(max_pixels)]
    outcome, grown, processes = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout.split()
    assert processes == "2"
    return outcome, int(grown)


def test_a_decoder_gets_no_more_than_the_header_reader_allowed(tmp_path):
    """A PNG of 64 million pixels behind a header that says 8 by 8, in a process whose memory is measured."""
    (tmp_path / "a.png").write_bytes(png(8000, 8000, 8, (8, 8)))
    found, grown = decoded_apart(tmp_path / "a.png", 1000)
    assert found == "size_mismatch" and grown < 50 * 2**20


@pytest.mark.parametrize(
    ("format", "mode", "how"),
    [
        ("WEBP", "RGBA", {"lossless": True, "method": 0}),
        ("WEBP", "RGB", {"method": 0}),
        ("TIFF", "RGBA", {"tiffinfo": {278: 10**6}}),  # rows a strip
        ("TIFF", "I;16", {"tiffinfo": {278: 10**6}}),
        ("TIFF", "F", {}),
        ("PNG", "RGBA", {"compress_level": 1}),
        ("PNG", "I;16", {"compress_level": 1}),
        ("JPEG", "CMYK", {}),
        ("BMP", "RGB", {}),
        ("GIF", "P", {}),
    ],
)
def test_no_image_takes_more_than_eight_bytes_for_each_allowed_pixel(tmp_path, format, mode, how):
    """In a process whose memory is measured: an image of all of them, and the largest one that is not refused."""
    allowed = 12_000_000
    most = 8 * allowed + 64 * 2**20
    each = {"WEBP": 20, "TIFF": 16}.get(format, 8)
    for pixels in (allowed, min(allowed, most // each)):
        side = int(pixels**0.5)
        Image.new(mode, (side, side)).save(tmp_path / "image", format, **how)
        outcome, grown = decoded_apart(tmp_path / "image", allowed)
        assert grown <= most
    assert outcome == "decoded"


@pytest.mark.parametrize("format", ["JPEG", "WEBP"])
def test_two_sizes_in_one_file(photo, format):
    data = photo(64, 48, format)
    if format == "JPEG":
        frame = next(m.start() for m in re.finditer(b"\xff[\xc0\xc2]", data))
        length = int.from_bytes(data[frame + 2 : frame + 4])
        small = bytearray(data[frame : frame + 2 + length])
        small[5:9] = struct.pack(">HH", 8, 8)
        data = data[:frame] + bytes(small) + data[frame:]
    else:  # a canvas that the frame inside is not of
        canvas = b"VP8X" + struct.pack("<I", 10) + bytes(4) + (7).to_bytes(3, "little") * 2
        data = data[:12] + canvas + data[12:]
        data = data[:4] + struct.pack("<I", len(data) - 8) + data[8:]
    assert reason(data) in ("size_mismatch", "corrupt_image")


def test_the_memory_of_sixteen_bits_is_bounded():
    """Beside the picture's 16 million pixels of RGB, only a stretch of rows is held in floating point."""
    data = png(4000, 4000, 16)
    tracemalloc.start()
    decoded = decode_rgb(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert not decoded.rgb.any() and decoded.rgb.nbytes == 48_000_000
    assert peak < 200_000_000


@pytest.mark.parametrize(
    ("mode", "dtype"), [("I;16", np.uint16), ("I", np.int32), ("F", np.float32), ("RGBA", np.uint8), ("L", np.uint8)]
)
def test_pixels_are_the_same_in_stretches_of_rows(monkeypatch, mode, dtype):
    """The white of deep pixels is the whole picture's."""
    shape = (50, 30, 4) if mode == "RGBA" else (50, 30)
    draw = np.random.default_rng(0).integers(0, 256, shape)
    draw[40:] *= 256 if mode in ("I;16", "I") else 1
    image = Image.fromarray(draw.astype(dtype))
    assert image.mode == mode
    data = encode(image, "TIFF")
    whole = decode_rgb(data).rgb
    monkeypatch.setattr("radioplat.data.images.decode._BAND_PIXELS", 7 * 30)
    assert np.array_equal(decode_rgb(data).rgb, whole)
    monkeypatch.setattr("radioplat.data.images.decode._BAND_PIXELS", 1)
    assert np.array_equal(decode_rgb(data).rgb, whole)


def test_a_jpeg_of_thousands_of_scans_is_refused_before_it_is_decoded():
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)).save(
        file, "JPEG", progressive=True
    )
    data = file.getvalue()
    end, last = data.rindex(b"\xff\xd9"), data.rindex(b"\xff\xda")
    assert 1 < data.count(b"\xff\xda") < 20 and decode_rgb(data).rgb.shape == (64, 64, 3)
    with pytest.raises(BadSample) as caught:
        decode_rgb(data[:end] + 600 * data[last:end] + data[end:])
    assert caught.value.reason == "too_slow" and "500 scans" in caught.value.detail
