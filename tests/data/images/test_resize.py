"""Both ways to resize give the same pixels, up to rounding."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radioplat.data.images.resize import resize, resize_by_pillow
from radioplat.data.views.crops import Box

pytest.importorskip("cykooz_resizer")
sides = st.integers(2, 90)


@given(sides, sides, sides, sides, st.tuples(*[st.floats(0, 1)] * 4), st.integers(0, 2**16))
@settings(deadline=None, max_examples=80)
def test_pillow_gives_what_the_fast_library_gives(width, height, to_width, to_height, parts, seed):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    left, right = sorted((parts[0] * width, parts[1] * width))
    top, bottom = sorted((parts[2] * height, parts[3] * height))
    if right - left < 1 or bottom - top < 1:
        return
    box = Box(left, top, right, bottom)
    fast, slow = (way(pixels, box, (to_width, to_height)).astype(int) for way in (resize, resize_by_pillow))
    assert fast.shape == (to_height, to_width, 3) and np.abs(fast - slow).max() <= 1
