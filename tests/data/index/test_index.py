"""What an index says of its files, and how it is read, refused and trusted."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from index_samples import LIMIT, build, samples

from radioplat.data.index.build import ShardIndex, build_index
from radioplat.data.storage.files import stat_file
from radioplat.errors import DataError
from radioplat.spec.schema.dataset import SplitConfig, TarSource
from radioplat.tracking.record_versions import NewerRecord, Versions


@pytest.mark.parametrize("key", ["radioplat_index", "name_rules"])
def test_an_index_of_a_newer_version_is_neither_used_nor_replaced(corpus, key):
    build(corpus)
    for name in ("shards", "faults"):
        table = pq.read_table(corpus / f"index/{name}.parquet")
        marks = table.schema.metadata | {key.encode(): b"3"}
        pq.write_table(table.replace_schema_metadata(marks), corpus / f"index/{name}.parquet")
    Versions("9.9", {"index_parts": 1}).write(corpus / "index")
    _refused_unchanged(
        corpus, rf"shards.parquet: field {key} has schema 3, written by radioplat 9\.9; .* up to schema 2"
    )


def test_an_unfinished_scan_of_a_newer_version_is_neither_used_nor_replaced(corpus):
    build(corpus)
    for name in ("shards.parquet", "faults.parquet", "classes.json"):
        (corpus / "index" / name).unlink()
    Versions("9.9", {"index_parts": 2}).write(corpus / "index")
    _refused_unchanged(corpus, r"record index_parts \(part-\*\) has schema 2, written by radioplat 9\.9")


def _refused_unchanged(corpus, message: str) -> None:
    """Check that each way to open or write the index in ``corpus`` raises an error, and changes no file."""
    other = build(corpus, "other")
    before = {path.name: path.read_bytes() for path in (corpus / "index").iterdir()}
    for action in (
        lambda: build(corpus),
        lambda: ShardIndex.load(corpus / "index"),
        lambda: other.save(corpus / "index"),
    ):
        with pytest.raises(NewerRecord, match=message):
            action()
    assert {path.name: path.read_bytes() for path in (corpus / "index").iterdir()} == before


def test_names_are_numbered_over_the_train_split(corpus, write_tar, photo):
    train = build(corpus)
    assert train.classes == ["c0", "c1"] == json.loads((corpus / "index/classes.json").read_text())
    names = {"1": b"c1", "2": b"a new one", "3": b"7"}
    write_tar(corpus / "v/v.tar", [m for k, v in names.items() for m in ((f"{k}.jpg", photo()), (f"{k}.cls", v))])
    val = build_index(
        SplitConfig(tar_data_sources=[TarSource(str(corpus / "v"))]), "dataset.val_dataset", corpus / "val",
        max_pixels=LIMIT, classes=train.classes,
    )  # fmt: skip
    assert val.label.tolist() == [1, -1, 7] and val.classes == train.classes


def test_an_images_folder_is_labelled_by_parent(tmp_path, photo):
    for name in ("dog/1.jpg", "cat/2.png", "top.jpg", "cat/bad.jpg"):
        path = tmp_path / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"text" if "bad" in name else photo(format="PNG" if name.endswith("png") else "JPEG"))
    images = SplitConfig(images_dir=str(tmp_path / "images"))
    for _ in range(2):  # scanned, then known
        index = build_index(images, "d", tmp_path / "index", max_pixels=LIMIT)
        assert samples(index)["key"].to_pylist() == ["cat/2", "dog/1", "top"]
        assert index.label.tolist() == [0, 1, -1] and index.classes == ["cat", "dog"]
        assert index.offset.tolist() == [0, 0, 0]
        assert index.faults["reason"].to_pylist() == ["not_an_image"]


def test_the_fingerprint_ignores_place_and_time_and_sees_content(corpus, tmp_path, write_tar, photo):
    first = build(corpus).fingerprint()
    shutil.copytree(corpus / "a", tmp_path / "moved/a")
    shutil.copytree(corpus / "b", tmp_path / "moved/b")
    os.utime(tmp_path / "moved/a/s0.tar", (1, 1))
    assert build(tmp_path / "moved").fingerprint() == first
    write_tar(corpus / "b/u.tar", [("x.jpg", photo())])
    assert build(corpus).fingerprint() != first


def test_a_changed_shard_is_named(corpus):
    index = build(corpus)
    path = str(corpus / "a/s0.tar")
    shard = index.shard_paths.index(path)
    index.check_shard(shard, stat_file(path))
    os.utime(path, (1, 1))
    with pytest.raises(DataError, match="shard changed") as caught:
        index.check_shard(shard, stat_file(path))
    assert caught.value.problems[0].where == path


def test_a_torn_or_foreign_index_is_noticed_and_rebuilt(corpus):
    first = build(corpus)
    before = samples(first)
    first.save(corpus / "other")
    shutil.copy(corpus / "other/faults.parquet", corpus / "index/faults.parquet")
    with pytest.raises(DataError, match="different builds"):
        ShardIndex.load(corpus / "index")
    (corpus / "index/shards.parquet").write_bytes(b"garbage")
    with pytest.raises(DataError, match="no usable index"):
        ShardIndex.load(corpus / "index")
    assert samples(build(corpus)).equals(before)
    next((corpus / "index").glob("part-*.parquet")).unlink()
    with pytest.raises(DataError, match="no usable index"):
        ShardIndex.load(corpus / "index")
    assert samples(build(corpus)).equals(before)
    with pytest.raises(DataError):
        ShardIndex.load(corpus / "nowhere")


@given(data=st.data())
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_columns_are_read_as_arrays_are(data, corpus):
    index = ShardIndex.load(corpus / "index") if (corpus / "index/shards.parquet").exists() else build(corpus)
    rows = data.draw(st.lists(st.integers(-7, 6), max_size=9))
    for name in ("source", "shard", "offset", "length", "width", "height", "label"):
        column = getattr(index, name)
        whole = np.asarray(column)
        assert whole.dtype == column.dtype and whole.shape == column.shape == (7,)
        assert np.array_equal(column[np.array(rows, int)], whole[rows]) and column[3] == whole[3]
        assert np.array_equal(column[2:5], whole[2:5]) and np.array_equal(column[whole > 1], whole[whole > 1])
        assert np.array_equal(column == whole[0], whole == whole[0]) and column.tolist() == whole.tolist()
    with pytest.raises(IndexError):
        index.width[7]
    assert [index.key(row) for row in range(7)] == samples(index)["key"].to_pylist()


def test_a_part_that_is_lost_later_is_named(corpus):
    index = ShardIndex.load(build(corpus).directory)
    for path in index.directory.glob("part-*.parquet"):
        path.write_bytes(b"torn")
    with pytest.raises(DataError, match="the index is damaged"):
        index.width[0]
