"""Every kind of image becomes upright 8-bit RGB, or a reason."""

from __future__ import annotations

import io
import warnings

import numpy as np
import pytest
from PIL import Image, ImageOps

from radioplat.data.decode import BadSample, decode_rgb


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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for format in ("JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF"):
            data = np.frombuffer(photo(40, 30, format), np.uint8)
            for _ in range(40):
                broken = data.copy()
                broken[rng.integers(0, min(len(data), 400), 6)] = rng.integers(0, 256, 6)
                try:
                    decode_rgb(broken.tobytes(), 8, max_pixels=10_000_000)
                except BadSample:
                    pass


def test_a_bomb_is_never_decoded(bomb_png):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert reason(bomb_png) == "too_many_pixels"
    assert reason(b"plain text") == "not_an_image"


def test_the_limit_is_inclusive(photo):
    assert decode_rgb(photo(8, 8, "PNG"), max_pixels=64).width == 8
    assert reason(photo(8, 8, "PNG"), max_pixels=63) == "too_many_pixels"
