"""TensorRT's calibration cache, bit by bit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radioplat.errors import EngineError
from radioplat.exporting.deploy.calibration_cache import header, write_cache
from tests.helpers.calibration_cache import read_cache


def test_bits_of_a_known_scale(tmp_path):
    path = write_cache({"conv: 1": 1 / 127}, "8.6.1", tmp_path / "c.cache")
    assert path.read_text() == "TRT-8601-EntropyCalibration2\nconv: 1: 3c010204\n"


@given(scales=st.dictionaries(
    st.text(st.characters(codec="ascii", categories=("L", "N", "P")), min_size=1),
    st.floats(2**-100, 2**100, width=32),
    max_size=8,
))  # fmt: skip
def test_reading_gives_back_what_was_written(scales, tmp_path_factory):
    path = write_cache(scales, "10.3", tmp_path_factory.mktemp("cache") / "c.cache")
    assert read_cache(path) == ("TRT-100300-EntropyCalibration2", scales)


@pytest.mark.parametrize(("version", "number"), [("8.6", 8600), ("8.5.2.2", 8502), ("9", 9000), ("10.13.3", 101303)])
def test_numbers_of_versions(version, number):
    assert header(version) == f"TRT-{number}-EntropyCalibration2"


@pytest.mark.parametrize(("version", "says"), [("11", "has no calibration caches"), ("x.1", "is not a version")])
def test_versions_without_caches(version, says):
    with pytest.raises(EngineError, match=says):
        header(version)


def test_a_scale_of_zero_is_refused(tmp_path):
    with pytest.raises(EngineError, match="must be positive"):
        write_cache({"a": 0.0}, "8.6", tmp_path / "c.cache")
