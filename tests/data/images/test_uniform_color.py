"""Images of one colour keep their place and weigh nothing, where that is asked for."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from radioplat.data.images.decode import BadSample, decode_rgb
from radioplat.data.images.uniform_color import refuse_uniform_color
from radioplat.data.index.build import build_index
from radioplat.data.loading.reader import MicroBatchReader
from radioplat.data.views.render import ViewSpec
from radioplat.spec.schema.dataset import SplitConfig, TarSource


def plain(color, format="JPEG") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (90, 70), color).save(buffer, format)
    return buffer.getvalue()


@pytest.mark.parametrize("color", ["white", "black", (17, 201, 99)])
@pytest.mark.parametrize("format", ["JPEG", "PNG"])
def test_one_colour_is_refused_however_it_is_coded(color, format):
    with pytest.raises(BadSample, match="uniform_color"):
        refuse_uniform_color(decode_rgb(plain(color, format)).rgb)


def test_one_other_pixel_saves_an_image():
    rgb = np.full((50, 60, 3), 200, np.uint8)
    for channel in range(3):
        other = rgb.copy()
        other[7, 9, channel] = 190  # not among the pixels of the first glance
        refuse_uniform_color(other)
    other = rgb.copy()
    other[7, 9] = 201
    with pytest.raises(BadSample):
        refuse_uniform_color(other)


def test_its_place_stays_with_weight_zero(tmp_path, write_tar, photo):
    write_tar(tmp_path / "a/1.tar", [("0.jpg", photo()), ("1.jpg", plain("white")), ("2.jpg", photo(mode="L"))])
    split = SplitConfig(tar_data_sources=[TarSource(str(tmp_path / "a"))])
    index = build_index(split, "d", tmp_path / "index", max_pixels=10**9)
    for asked, weight in ((True, [1, 0, 1]), (False, [1, 1, 1])):
        reader = MicroBatchReader(index, None, [ViewSpec("32", 32)], None, 0, 3, reject_uniform=asked)
        batch = reader.read_rows([0, 1, 2])
        assert batch.weight.tolist() == weight and batch.sample_id.tolist() == [0, 1, 2]
        assert list(batch.faults) == ([1] if asked else [])
        assert all(why.startswith("uniform_color") for why in batch.faults.values())
