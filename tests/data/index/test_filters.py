"""Which rows take part, and how often."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radioplat.data.index.build import ShardIndex, build_index
from radioplat.data.index.filters import REASONS, draw_frequencies, reject_codes, weight_of
from radioplat.data.index.shard_index import SHARD_SCHEMA
from radioplat.data.scan.tables import FAULT_SCHEMA, SCAN_SCHEMA, hash_key
from radioplat.spec.schema.dataset import ResolutionFilter, SplitConfig, TarSource, WeightMode


def reasons(index: ShardIndex, split: SplitConfig, max_pixels: int) -> np.ndarray:
    """Names of the reasons of :func:`reject_codes`."""
    return np.array(REASONS, object)[reject_codes(index, split, max_pixels)]


def index_of(sizes, hashes=None) -> ShardIndex:
    """An index over one shard that nobody reads; sizes are (width, height)."""
    n, folder = len(sizes), Path(tempfile.mkdtemp(dir=FOLDER))
    columns = {f.name: pa.nulls(n, f.type) for f in SCAN_SCHEMA}
    columns["width"] = pa.array([w for w, _ in sizes], pa.int32())
    columns["height"] = pa.array([h for _, h in sizes], pa.int32())
    texts = [f"h{h}" for h in (hashes if hashes is not None else range(n))]
    columns["hash"] = pa.array(texts, pa.large_string())
    columns["hash_key"] = pa.array([hash_key(text) for text in texts], pa.int64())
    pq.write_table(pa.table(columns, schema=SCAN_SCHEMA), folder / "part-0.parquet")
    row = [[0], ["tar"], ["/nowhere"], ["a.tar"], [0], [0], [n], [""], ["part-0"], [0]]
    return ShardIndex(pa.table(row, schema=SHARD_SCHEMA), FAULT_SCHEMA.empty_table(), [], folder)


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    """Where :func:`index_of` writes."""
    global FOLDER
    FOLDER = tmp_path_factory.mktemp("indices")


def weights(index, kept, mode) -> np.ndarray:
    return weight_of(draw_frequencies(index, kept, mode), mode)


sizes = st.lists(st.tuples(st.integers(1, 300), st.integers(1, 300)), min_size=1, max_size=30)
maybe = st.none() | st.integers(0, 200)


areas = st.none() | st.integers(0, 40_000)
ratios = st.none() | st.sampled_from([1.0, 1.5, 2.0, 3.0])


@given(sizes, maybe, maybe, areas, ratios, st.integers(1, 90_000))
@settings(max_examples=80, deadline=None)
def test_the_first_failing_reason_is_given(sizes, short, long, area, ratio, limit):
    split = SplitConfig(native_resolution_filter=ResolutionFilter(short, long, area, ratio))
    got = reasons(index_of(sizes), split, limit)
    for (w, h), reason in zip(sizes, got, strict=True):
        failing = [
            name
            for name, fails in {
                "too_many_pixels": w * h > limit,
                "min_short_side": short is not None and min(w, h) < short,
                "min_long_side": long is not None and max(w, h) < long,
                "min_area": area is not None and w * h < area,
                "max_aspect_ratio": ratio is not None and max(w, h) > ratio * min(w, h),
            }.items()
            if fails
        ]
        assert reason == (failing[0] if failing else "") and reason in REASONS


def test_thresholds_are_inclusive():
    index = index_of([(30, 20), (29, 20), (30, 19)])
    split = SplitConfig(native_resolution_filter=ResolutionFilter(20, 30, 600, 1.5))
    assert reasons(index, split, 600).tolist() == ["", "min_long_side", "min_short_side"]
    assert reasons(index, split, 599)[0] == "too_many_pixels"


def test_a_bomb_does_not_overflow():
    index = index_of([(2**31 - 1, 2**31 - 1)])
    assert reasons(index, SplitConfig(), 10**9).tolist() == ["too_many_pixels"]


def test_of_equal_hashes_the_first_that_passes_stays():
    index = index_of([(10, 10), (50, 50), (50, 50), (60, 60), (50, 50)], hashes=[1, 1, 1, 2, 2])
    split = SplitConfig(dedup=True, native_resolution_filter=ResolutionFilter(min_short_side=20))
    assert reasons(index, split, 10**9).tolist() == ["min_short_side", "", "duplicate", "", "duplicate"]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=30), st.data())
@settings(max_examples=50, deadline=None)
def test_weights_follow_the_formulas(hashes, data):
    kept = np.array(data.draw(st.lists(st.booleans(), min_size=len(hashes), max_size=len(hashes))))
    index = index_of([(9, 9)] * len(hashes), hashes)
    f = np.array([sum(k and g == h for g, k in zip(hashes, kept, strict=True)) for h in hashes], float)
    formulas = {
        WeightMode.inv_frequency: lambda f: 1 / f, WeightMode.inv_sq_frequency: lambda f: 1 / f**2,
        WeightMode.inv_log_frequency: lambda f: 1 / np.log(1 + f), WeightMode.uniform: np.ones_like, None: np.ones_like,
    }  # fmt: skip
    for mode, formula in formulas.items():
        weight = weights(index, kept, mode)
        assert weight.dtype == np.float64
        np.testing.assert_allclose(weight[kept], formula(f[kept]), rtol=1e-7)
        assert (weight[~kept] == 0).all()


def test_missing_hashes_are_computed_once_and_kept(tmp_path, write_tar, photo):
    one, two = photo(40, 30), photo(50, 30)
    sidecar = f'{{"sha256": "{hashlib.sha256(one).hexdigest()}"}}'.encode()
    members = [("1.jpg", one), ("1.json", sidecar), ("2.jpg", one), ("3.jpg", two), ("4.jpg", two)]
    write_tar(tmp_path / "a/1.tar", members)
    split = SplitConfig(tar_data_sources=[TarSource(str(tmp_path / "a"))])
    index = build_index(split, "d", tmp_path / "index", max_pixels=10**9)
    fingerprint = index.fingerprint()
    assert weights(index, np.ones(4, bool), None).tolist() == [1, 1, 1, 1]
    assert not list((tmp_path / "index").glob("*.hashes"))  # computed on demand only
    kept = np.array([True, True, True, False])
    assert weights(index, kept, WeightMode.inv_frequency).tolist() == [0.5, 0.5, 1, 0]
    again = ShardIndex.load(tmp_path / "index")
    (path,) = (tmp_path / "index").glob("*.hashes")
    hashes = pq.read_table(path)["content_hash"].to_pylist()
    assert hashes == [None, *(hashlib.sha256(data).hexdigest() for data in (one, two)), None]
    assert again.fingerprint() == fingerprint == index.fingerprint()
    rebuilt = build_index(split, "d", tmp_path / "index", max_pixels=10**9)
    assert list((tmp_path / "index").glob("*.hashes")) == [path]
    split.dedup = True
    assert reasons(rebuilt, split, 10**9).tolist() == ["", "duplicate", "", "duplicate"]


@pytest.mark.parametrize("mode", list(WeightMode))
def test_nothing_kept_weighs_nothing(mode):
    assert weights(index_of([(1, 1)] * 3), np.zeros(3, bool), mode).tolist() == [0, 0, 0]
