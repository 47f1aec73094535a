"""The books of a run: what was consumed, replayed, rejected."""

from __future__ import annotations

import zlib

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.ledger_rows import read_consumed
from radioplat.data.batch import Batch, View
from radioplat.data.index.build import build_index
from radioplat.data.index.filters import REASONS, reject_codes
from radioplat.data.ledger.ledger import Ledger, write_rejects
from radioplat.data.ledger.lineage import guessed_parts
from radioplat.spec.schema.dataset import ResolutionFilter, SplitConfig, TarSource


def batch(micro_batch: int, size: int = 2, bad: bool = False) -> Batch:
    position = np.arange(micro_batch * size, (micro_batch + 1) * size)
    pixels = np.random.default_rng(micro_batch).integers(0, 256, (size, 3, 4, 4), np.uint8)
    weight = np.ones(size, np.float32)
    faults = {}
    if bad:
        weight[0], faults = 0, {int(position[0]) + 100: "corrupt_image: cut"}
    view = View(pixels, np.zeros((size, 3, 3), np.float32))
    return Batch(micro_batch, {"v": view}, position + 100, position, weight, np.full(size, -1), faults)


def test_what_is_written_is_read_back(tmp_path):
    ledger = Ledger(tmp_path, rank=1, attempt=0)
    for step in range(3):
        ledger.record(step, batch(step))
    assert read_consumed(tmp_path).num_rows == 0
    ledger.flush()
    ledger.flush()
    rows = read_consumed(tmp_path)
    assert rows["id"].to_pylist() == [100, 101, 102, 103, 104, 105] and rows["rank"].to_pylist() == [1] * 6
    assert rows["step"].to_pylist() == [0, 0, 1, 1, 2, 2]
    assert rows["checksum"].to_pylist()[:2] == [zlib.crc32(image.tobytes()) for image in batch(0).views["v"].pixels]
    assert len(list(tmp_path.glob("*.parquet"))) == 1


def test_padding_leaves_no_trace(tmp_path):
    ledger = Ledger(tmp_path, 0, 0)
    padding = batch(0)
    ledger.record(0, Batch(-1, padding.views, padding.sample_id, padding.position, padding.weight * 0, padding.label))
    ledger.flush()
    assert read_consumed(tmp_path).num_rows == 0 and list(tmp_path.iterdir()) == []


def test_a_restarted_worker_writes_beside_what_it_left(tmp_path):
    for _ in range(3):
        ledger = Ledger(tmp_path, 0, 0)
        ledger.record(0, batch(0))
        ledger.flush()
    assert read_consumed(tmp_path).num_rows == 6


def test_a_way_back_to_the_final_checkpoint():
    # Attempt 1 died in step 9; 2 went on from 6 and wrote 12; 3 went on from an older checkpoint, as 12 was not there.
    spans = {1: (0, 9), 2: (6, 13), 3: (6, 7)}
    assert guessed_parts(spans, 12, attempt=2) == [(1, 0, 6), (2, 6, 12)]
    assert guessed_parts(spans) == [(1, 0, 6), (3, 6, 8)]
    assert guessed_parts(spans, 5, attempt=1) == [(1, 0, 5)]
    assert guessed_parts({1: (4, 9)}, 12, attempt=1) == [(1, 4, 12)]  # what its rows lack is missing, not another's
    assert guessed_parts({}) == []


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=1, max_size=6))
def test_every_chain_of_starts_is_found_again(starts):
    spans, reached, chain = {}, 0, []
    for number, (back, ahead) in enumerate(starts, start=1):
        first = max(0, reached - back)
        spans[number] = (first, first + ahead)
        reached = first + ahead  # the checkpoint before the last step that was written down
        chain = [(a, s, min(e, first)) for a, s, e in chain if s < first] + [(number, first, reached)]
    expected = [part for part in chain if part[1] < part[2]]
    if starts[-1][1]:
        assert guessed_parts(spans, reached, attempt=len(starts)) == expected


def test_checksums_see_one_changed_pixel():
    one, other = batch(0), batch(0)
    other.views["v"].pixels[1, 2, 3, 3] ^= 1
    assert (one.checksums == other.checksums).tolist() == [True, False]


@pytest.mark.parametrize("limit", [None, 50])
def test_every_reject_is_written_once_with_its_reason(tmp_path, write_tar, photo, limit):
    write_tar(tmp_path / "a/1.tar", [("big.jpg", photo(80, 60)), ("small.jpg", photo(40, 30)), ("text.jpg", b"text")])
    split = SplitConfig(tar_data_sources=[TarSource(str(tmp_path / "a"))])
    split.native_resolution_filter = ResolutionFilter(min_short_side=limit)
    index = build_index(split, "d", tmp_path / "index", max_pixels=10**9)
    for _ in range(2):
        write_rejects(tmp_path / "ledger", index, np.array(REASONS, object)[reject_codes(index, split, 10**9)])
    rows = pq.read_table(tmp_path / "ledger/rejects.parquet").to_pylist()
    found = {(r["id"], r["key"], r["reason"]) for r in rows}
    filtered = {(1, "small", "min_short_side")} if limit else set()
    assert found == filtered | {(-1, "text", "not_an_image")} and len(rows) == len(found)
    assert all(r["shard"] == str(tmp_path / "a/1.tar") for r in rows)
