"""Building, rebuilding, saving and trusting the index."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from index_samples import samples

from radioplat.data.index.build import ShardIndex, build_index
from radioplat.data.scan import scan as scan_module
from radioplat.data.scan.scan import scan_here, scan_in_processes
from radioplat.data.storage.files import stat_file
from radioplat.errors import DataError
from radioplat.spec.schema.dataset import SplitConfig, TarSource
from radioplat.tracking.record_versions import NewerRecord, Versions

LIMIT = 178_956_970


@pytest.fixture
def corpus(tmp_path, write_tar, photo):
    """Two sources, three shards, seven images."""
    for folder, shards in (("a", {"s1": 3, "s0": 2}), ("b", {"t": 2})):
        for shard, count in shards.items():
            members = [(f"{shard}-{i}.jpg", photo(40 + i, 30)) for i in range(count)]
            members += [(f"{shard}-{i}.json", json.dumps({"label": f"c{i % 2}"}).encode()) for i in range(count)]
            write_tar(tmp_path / folder / f"{shard}.tar", members)
    return tmp_path


def split(root) -> SplitConfig:
    return SplitConfig(tar_data_sources=[TarSource(str(root / "a")), TarSource(str(root / "b"))])


def build(root, into="index", **kw) -> ShardIndex:
    return build_index(split(root), "dataset.train_dataset", root / into, max_pixels=LIMIT, workers=2, **kw)


def test_rows_are_in_order_of_source_shard_offset(corpus):
    index = build(corpus)
    assert samples(index)["key"].to_pylist() == ["s0-0", "s0-1", "s1-0", "s1-1", "s1-2", "t-0", "t-1"]
    assert index.source.tolist() == [0, 0, 0, 0, 0, 1, 1] and index.shard.tolist() == [0, 0, 1, 1, 1, 2, 2]
    assert index.width.tolist() == [40, 41, 40, 41, 42, 40, 41] and index.width.dtype == np.int32
    assert index.offset.dtype == np.int64 and index.key(5) == "t-0"


def test_saved_and_loaded_equal(corpus):
    built = build(corpus)
    built_samples = samples(built)
    built.save(corpus / "copy")
    again = pickle.loads(pickle.dumps(built))
    for index in (ShardIndex.load(corpus / "index"), ShardIndex.load(corpus / "copy"), again):
        assert samples(index).equals(samples(built)) and index.shards.equals(built.shards)
        assert index.classes == built.classes and index.fingerprint() == built.fingerprint()
    (part,) = (corpus / "copy").glob("part-*")
    assert sorted(p.name for p in (corpus / "copy").iterdir()) == [
        "classes.json", "faults.parquet", part.name, "shards.parquet", "versions.json",
    ]  # fmt: skip
    shutil.rmtree(corpus / "index")  # the copy stands by itself
    assert samples(ShardIndex.load(corpus / "copy")).equals(built_samples)


def test_only_what_changed_is_scanned_again(corpus, write_tar, photo):
    first = samples(build(corpus))
    scanned: list[str] = []

    def again(root):
        def scan(batches):
            scanned.extend(name for batch in batches for name in batch.names)
            return scan_here(batches)

        return build(root, scan=scan)

    assert samples(again(corpus)).equals(first) and scanned == []
    write_tar(corpus / "a" / "s1.tar", [("new.jpg", photo(50, 50))])
    write_tar(corpus / "a" / "s2.tar", [("newer.jpg", photo(60, 50)), ("bad.jpg", b"text")])
    second = again(corpus)
    assert sorted(scanned) == ["s1.tar", "s2.tar"]
    assert samples(second)["key"].to_pylist() == ["s0-0", "s0-1", "new", "newer", "t-0", "t-1"]
    assert second.label.tolist() == [0, 1, -1, -1, 0, 1]
    third = again(corpus)
    assert third.faults.equals(second.faults) and third.faults["reason"].to_pylist() == ["not_an_image"]
    third_samples = samples(third)
    shutil.rmtree(corpus / "index")
    assert samples(again(corpus)).equals(third_samples)


def test_tars_that_an_earlier_release_read_by_other_rules_are_scanned_again(tmp_path, write_tar, photo):
    """It wrote no number of its rules, and had no row of img.001.jpg and none of z.tif, not even with a fault."""
    for shard, name in (("0", "img.001.jpg"), ("1", "x.jpg"), ("2", "z.tif")):
        write_tar(tmp_path / f"a/{shard}.tar", [(name, photo())])
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "0.png").write_bytes(photo())
    source = SplitConfig(tar_data_sources=[TarSource(str(tmp_path / "a"))], images_dir=str(tmp_path / "b"))
    scanned: list[str] = []

    def built() -> ShardIndex:
        def scan(batches):
            scanned.extend(name for batch in batches for name in batch.names)
            return scan_here(batches)

        scanned.clear()
        return build_index(source, "d", tmp_path / "i", max_pixels=LIMIT, scan=scan)

    index = built()
    assert samples(index)["key"].to_pylist() == ["img", "x", "z", "0"]
    fingerprint = index.fingerprint()
    earlier = {
        "shards": pa.table(index.shards.to_pydict() | {"rows": [0, 1, 0, 1]}, schema=index.shards.schema),
        "faults": index.faults,
    }
    for name, table in earlier.items():
        marks = {k: v for k, v in pq.read_schema(tmp_path / f"i/{name}.parquet").metadata.items() if k != b"name_rules"}
        pq.write_table(table.replace_schema_metadata(marks), tmp_path / f"i/{name}.parquet")
    assert samples(ShardIndex.load(tmp_path / "i"))["key"].to_pylist() == ["x", "0"]
    index = built()
    assert scanned == ["0.tar", "1.tar", "2.tar"], "images are read by no rules of names"
    assert samples(index)["key"].to_pylist() == ["img", "x", "z", "0"] and index.fingerprint() == fingerprint
    built()
    assert scanned == []


def test_another_image_extension_is_another_scan(tmp_path, write_tar, photo):
    write_tar(tmp_path / "a/0.tar", [("0.left.jpg", photo(40, 30)), ("0.right.jpg", photo(50, 30))])

    def widths(*extensions: str | None) -> list[int]:
        tars = [TarSource(str(tmp_path / "a"), image_extension=extension) for extension in extensions]
        source = SplitConfig(tar_data_sources=tars)
        return build_index(source, "d", tmp_path / "i", max_pixels=LIMIT, workers=1).width.tolist()

    assert widths("left.jpg") == [40] and widths("right.jpg") == [50] and widths("right.jpg", "LEFT.jpg") == [50, 40]
    with pytest.raises(DataError, match="several_images left.jpg, right.jpg: set image_extension"):
        widths(None)


def test_another_spelling_of_an_image_extension_is_the_same_scan(tmp_path, write_tar, photo):
    write_tar(tmp_path / "a/0.tar", [("0.LEFT.jpg", photo(40, 30)), ("0.right.jpg", photo(50, 30))])
    scanned: list[str] = []

    def scan(batches):
        scanned.extend(batch.names[0] for batch in batches)
        return scan_here(batches, 1)

    def fingerprint(extension: str) -> str:
        source = SplitConfig(tar_data_sources=[TarSource(str(tmp_path / "a"), image_extension=extension)])
        return build_index(source, "d", tmp_path / "i", max_pixels=LIMIT, scan=scan).fingerprint()

    assert len({fingerprint(extension) for extension in ("left.jpg", ".left.jpg", "LEFT.JPG", ".Left.jpg")}) == 1
    assert scanned == ["0.tar"]


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


def test_a_source_without_a_usable_image_is_an_error(tmp_path, write_tar, photo, bomb_png):
    write_tar(tmp_path / "a/1.tar", [("1.jpg", photo())])
    for members in ([("bad.jpg", b"text")], [("bomb.png", bomb_png)]):
        write_tar(tmp_path / "b/1.tar", members)
        with pytest.raises(DataError, match=r"tar_data_sources\[1\].root_dir.*no|none of the 1 tar shards") as caught:
            build(tmp_path)
        assert caught.value.problems[0].where == "dataset.train_dataset.tar_data_sources[1].root_dir"
    (tmp_path / "b/1.tar").write_bytes(b"")
    with pytest.raises(DataError, match="empty_tar"):
        build(tmp_path)


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


def test_progress_counts_shards(corpus):
    seen = []
    build(corpus, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]


KILLED = """
import os, signal, sys
from radioplat.data.index import parquet_parts
from radioplat.data.index.build import build_index
from radioplat.spec.schema.dataset import SplitConfig, TarSource

parquet_parts.PART_SECONDS = 0.0  # every shard is put on disk at once
split = SplitConfig(tar_data_sources=[TarSource(sys.argv[1])])
kill = lambda done, total: done == 9 and os.kill(os.getpid(), signal.SIGKILL)
build_index(split, "d", sys.argv[2], max_pixels=10**9, workers=1, progress=kill)
"""


SCAN = """
import sys
import time
from radioplat.data.index.build import build_index
from radioplat.data.storage import retry
from radioplat.spec.schema.dataset import SplitConfig, TarSource

retry.FIRST_PAUSE_S = 0.001
split = SplitConfig(tar_data_sources=[TarSource(sys.argv[1])])
index = build_index(split, "d", sys.argv[2], max_pixels=10**9, workers=1)
print(len(index), *index.faults["reason"].to_pylist())
"""


PATIENT = """
from radioplat.data.index.scan_wait import Patience
from radioplat.errors import StorageError

try:
"""
SAY_ERROR = """
except StorageError as error:
    assert "could not be read for" in str(error) and "last answer" in str(error)
    print("StorageError")
"""


def test_a_shard_that_could_not_be_read_is_scanned_again(tmp_path, write_tar, photo, failing_reads):
    """Its size and time are as before: an outage while an index is built must not shrink the data for good."""
    for shard in range(3):
        write_tar(tmp_path / f"a/{shard}.tar", [(f"{shard}-{i}.jpg", photo(40 + shard, 30)) for i in range(2)])
    command = [sys.executable, "-c", SCAN, str(tmp_path / "a"), str(tmp_path / "index")]

    def scanned() -> str:
        environment = os.environ | failing_reads.environment
        return subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()

    failing_reads.fail("1.tar")
    assert scanned() == "4 unreadable_shard"
    failing_reads.mend()
    assert scanned() == "6"


@pytest.mark.parametrize(
    ("failing", "one_file", "store", "mended_after", "expected"),
    [
        (".tar", 0.5, 60, 3, "6"),  # an outage, waited for
        (".tar", 0.5, 2, None, "StorageError"),
        ("1.tar", 60, 60, 3, "6"),
        ("1.tar", 2, 60, None, "4 unreadable_shard"),  # one bad file: left out
    ],
)
def test_a_start_waits_for_what_storage_does_not_give(
    tmp_path, write_tar, photo, failing_reads, failing, one_file, store, mended_after, expected
):
    for shard in range(3):
        write_tar(tmp_path / f"a/{shard}.tar", [(f"{shard}-{i}.jpg", photo(40 + shard, 30)) for i in range(2)])
    patient = SCAN.replace("workers=1", f"workers=1, patience=Patience({one_file}, {store})")
    code = PATIENT + "".join(f"    {line}\n" for line in patient.splitlines()) + SAY_ERROR
    command = [sys.executable, "-c", code, str(tmp_path / "a"), str(tmp_path / "index")]
    failing_reads.fail(failing)
    environment = os.environ | failing_reads.environment
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as process:
        assert process.stdout.readline().startswith("waiting for storage: ")
        if mended_after is not None:
            time.sleep(mended_after)
            failing_reads.mend()
        assert process.communicate(timeout=60)[0].strip() == expected


def test_a_killed_scan_goes_on_where_it_was(tmp_path, write_tar, photo):
    for shard in range(12):
        members = [(f"{shard}-{i}.jpg", photo(40 + shard, 30)) for i in range(2)]
        write_tar(tmp_path / f"a/{shard:02d}.tar", [*members, (f"bad{shard}.jpg", b"text")])
    command = [sys.executable, "-c", KILLED, str(tmp_path / "a"), str(tmp_path / "index")]
    assert subprocess.run(command).returncode == -signal.SIGKILL
    write_tar(tmp_path / "a/03.tar", [("new.jpg", photo(90, 30))])  # changed since: what was found is out of date
    with pytest.raises(DataError):
        ShardIndex.load(tmp_path / "index")
    scanned = []

    def scan(batches):
        scanned.extend(name for batch in batches for name in batch.names)
        return scan_here(batches)

    seen = []
    only = SplitConfig(tar_data_sources=[TarSource(str(tmp_path / "a"))])
    index = build_index(
        only, "d", tmp_path / "index", max_pixels=LIMIT, scan=scan, progress=lambda *done: seen.append(done)
    )
    assert scanned == ["03.tar", "09.tar", "10.tar", "11.tar"] and seen == [(9, 12), (10, 12), (11, 12), (12, 12)]
    whole = build_index(only, "d", tmp_path / "whole", max_pixels=LIMIT)
    assert samples(index).equals(samples(whole)) and index.faults.equals(whole.faults) and len(index.faults) == 11
    left = {path.suffix for path in (tmp_path / "index").glob("part-*")}
    assert left == {".parquet"}  # the notes of the scan are gone


def test_two_who_build_at_once_scan_once(corpus):
    scans = []

    def scan(batches):
        scans.append(len(batches))
        return scan_here(batches)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: build(corpus, scan=scan).fingerprint(), range(4)))
    assert len(set(found)) == 1 and scans == [3]


def test_processes_make_the_same_index(corpus, monkeypatch):
    monkeypatch.setattr(scan_module, "LITTLE_BYTES", 0)
    here = build(corpus)
    there = build(corpus, "processes", scan=lambda batches: scan_in_processes(batches, 2))
    assert samples(there).equals(samples(here)) and there.fingerprint() == here.fingerprint()


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
