"""Counting equal keys, some at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radioplat.data.index import frequency, scratch
from radioplat.data.index.frequency import first_of_each, frequencies


@pytest.mark.parametrize("little_memory", [False, True])
@given(keys=st.lists(st.integers(-3, 3), max_size=60))
@settings(max_examples=60, deadline=None)
def test_counts_and_firsts(little_memory, keys, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        if little_memory:  # several shares, several steps, arrays in files
            patch.setattr(frequency, "ROWS_AT_ONCE", 7)
            patch.setattr(frequency, "_STEP", 5)
            patch.setattr(scratch, "IN_MEMORY_BYTES", 1)
        folder = tmp_path_factory.getbasetemp()
        array = np.array(keys, np.int64)
        assert frequencies(array, folder).tolist() == [0 if k == 0 else keys.count(k) for k in keys]
        assert first_of_each(array, folder).tolist() == [k != 0 and keys.index(k) == i for i, k in enumerate(keys)]
