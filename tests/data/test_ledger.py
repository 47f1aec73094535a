"""The books of a run: what was consumed, replayed, rejected."""

from __future__ import annotations

import zlib

import numpy as np
import pyarrow.parquet as pq
import pytest

from radioplat.data.batch import Batch, View
from radioplat.data.filters import reject_reasons
from radioplat.data.index import build_index
from radioplat.data.ledger import Ledger, checksums, effective, read_consumed, read_rejected, summary, write_rejects
from radioplat.spec.dataset import ResolutionFilter, SplitConfig, TarSource


def batch(grain: int, size: int = 2, bad: bool = False) -> Batch:
    position = np.arange(grain * size, (grain + 1) * size)
    pixels = np.random.default_rng(grain).integers(0, 256, (size, 3, 4, 4), np.uint8)
    weight = np.ones(size, np.float32)
    faults = {}
    if bad:
        weight[0], faults = 0, {int(position[0]) + 100: "corrupt_image: cut"}
    view = View(pixels, np.zeros((size, 3, 3), np.float32))
    return Batch(grain, {"v": view}, position + 100, position, weight, np.full(size, -1), faults)


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


def test_replayed_steps_are_counted_apart(tmp_path):
    # Two ranks reach step 3; the run goes on from step 1 with one rank, and ends at step 2.
    for rank in (0, 1):
        ledger = Ledger(tmp_path, rank, attempt=0)
        for step in range(4):
            ledger.record(step, batch(step * 2 + rank))
        ledger.flush()
    ledger = Ledger(tmp_path, 0, attempt=1)
    for grain in (4, 5):
        ledger.record(2, batch(grain, bad=grain == 5))
    ledger.flush()
    rows = effective(read_consumed(tmp_path), final_step=2)
    assert sorted(rows["position"].to_pylist()) == list(range(12))
    found = summary(tmp_path, final_step=2)
    assert (found.consumed, found.replayed, found.repeated, found.missing) == (12, 8, 0, 0)
    assert found.unreadable == {"corrupt_image": 1}
    assert read_rejected(tmp_path)["reason"].to_pylist() == ["corrupt_image: cut"]


def test_what_is_missing_or_repeated_shows(tmp_path):
    ledger = Ledger(tmp_path, 0, 0)
    for step, grain in enumerate((0, 1, 1, 3)):
        ledger.record(step, batch(grain))
    ledger.flush()
    found = summary(tmp_path)
    assert (found.consumed, found.repeated, found.missing) == (8, 2, 2)


def test_checksums_see_one_changed_pixel():
    one, other = batch(0), batch(0)
    other.views["v"].pixels[1, 2, 3, 3] ^= 1
    assert (checksums(one) == checksums(other)).tolist() == [True, False]


@pytest.mark.parametrize("limit", [None, 50])
def test_every_reject_is_written_once_with_its_reason(tmp_path, write_tar, photo, limit):
    write_tar(tmp_path / "a/1.tar", [("big.jpg", photo(80, 60)), ("small.jpg", photo(40, 30)), ("text.jpg", b"text")])
    split = SplitConfig(tar_data_sources=[TarSource(str(tmp_path / "a"))])
    split.native_resolution_filter = ResolutionFilter(min_short_side=limit)
    index = build_index(split, "d", tmp_path / "index", max_pixels=10**9)
    for _ in range(2):
        write_rejects(tmp_path / "ledger", index, reject_reasons(index, split, 10**9))
    rows = pq.read_table(tmp_path / "ledger/rejects.parquet").to_pylist()
    found = {(r["id"], r["key"], r["reason"]) for r in rows}
    filtered = {(1, "small", "min_short_side")} if limit else set()
    assert found == filtered | {(-1, "text", "not_an_image")} and len(rows) == len(found)
    assert all(r["shard"] == str(tmp_path / "a/1.tar") for r in rows)
    assert summary(tmp_path / "ledger").rejected == {reason: 1 for _, _, reason in found}
