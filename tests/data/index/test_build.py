"""Building, rebuilding, saving and trusting the index."""

from __future__ import annotations

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
from index_samples import LIMIT, build, samples

from radioplat.data.index.build import ShardIndex, build_index
from radioplat.data.scan import scan as scan_module
from radioplat.data.scan.scan import scan_here, scan_in_processes
from radioplat.errors import DataError
from radioplat.spec.schema.dataset import SplitConfig, TarSource


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
