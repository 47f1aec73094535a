"""No byte of a PNG that matters can change unseen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radioplat.data.images.decode import BadSample, decode_rgb
from radioplat.data.images.png_checksums import SIGNATURE, png_damage


@pytest.fixture(scope="module")
def png(photo) -> bytes:
    return photo(60, 50, "PNG")


def test_a_whole_one(png):
    assert png.startswith(SIGNATURE) and png_damage(png) == "" and png_damage(png + b"behind the end") == ""


@given(place=st.floats(0, 1, exclude_max=True), change=st.integers(1, 255))
def test_any_changed_byte_shows(png, place, change):
    data = bytearray(png)
    data[8 + int(place * (len(png) - 8))] ^= change
    assert png_damage(bytes(data))


@given(st.floats(0, 1, exclude_max=True))
def test_any_cut_or_overwritten_tail_shows(png, place):
    at = 8 + int(place * (len(png) - 8))
    assert png_damage(png[:at]) and png_damage(png[:at] + bytes(len(png) - at))


def test_the_decoder_asks(png):
    with pytest.raises(BadSample) as caught:
        decode_rgb(png[: len(png) // 3] + bytes(len(png) - len(png) // 3))
    assert caught.value.reason == "corrupt_image"
