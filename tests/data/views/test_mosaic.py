"""Mosaics hold every image once, where they say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radioplat.data.batch import View
from radioplat.data.views.mosaic import make_mosaic


@given(st.integers(0, 11), st.integers(1, 3), st.integers(0, 5), st.booleans())
@settings(max_examples=60, deadline=None)
def test_every_image_is_found_where_its_corner_says(count, across, spare, masked):
    rng = np.random.default_rng(count)
    pixels = rng.integers(1, 256, (count, 3, 8, 8), np.uint8)
    homography = rng.normal(size=(count, 3, 3)).astype(np.float32)
    valid = rng.random((count, 8, 8)) < 0.5 if masked else None
    mosaic = make_mosaic(View(pixels, homography, valid), 8 * across + spare, across)
    assert mosaic.pixels.shape == (-(-count // across**2), 3, 8 * across + spare, 8 * across + spare)
    shown = 0
    for i in range(count):
        x, y = mosaic.corner[i]
        assert (mosaic.pixels[mosaic.picture[i], :, y : y + 8, x : x + 8] == pixels[i]).all()
        mask = mosaic.valid[mosaic.picture[i], y : y + 8, x : x + 8]
        assert (mask == (True if valid is None else valid[i])).all()
        shown += mask.sum()
        inside = mosaic.homography[i] @ [x + 2.5, y + 3.5, 1]
        np.testing.assert_allclose(inside, homography[i] @ [2.5, 3.5, 1], rtol=1e-3, atol=1e-3)
    assert mosaic.valid.sum() == shown and (mosaic.pixels > 0).all(1).sum() == count * 64
    assert len({(p, *c) for p, c in zip(mosaic.picture, map(tuple, mosaic.corner), strict=True)}) == count


def test_tiles_that_do_not_fit_are_refused():
    view = View(np.zeros((1, 3, 8, 8), np.uint8), np.eye(3, dtype=np.float32)[None])
    for side, across in ((15, 2), (8, 0)):
        with pytest.raises(ValueError):
            make_mosaic(view, side, across)
