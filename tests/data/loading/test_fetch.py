"""Bytes of samples from storage that fails, hangs, changes or vanishes."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import time

import pytest

from radioplat.data.images.decode import BadSample
from radioplat.data.index.build import build_index
from radioplat.data.loading import fetch
from radioplat.data.loading.fetch import Fetcher
from radioplat.data.loading.reader import MicroBatchReader
from radioplat.data.views.render import ViewSpec
from radioplat.spec.schema.dataset import SplitConfig, TarSource


@pytest.fixture
def index(tmp_path, write_tar, photo):
    for shard in range(2):
        write_tar(tmp_path / f"a/{shard}.tar", [(f"{shard}{i}.jpg", photo(60 + i, 50)) for i in range(2)])
    return build_index(
        SplitConfig(tar_data_sources=[TarSource(str(tmp_path / "a"))]), "d", tmp_path / "i", max_pixels=10**9
    )


def reason(fetcher, row) -> str:
    with pytest.raises(BadSample) as caught:
        fetcher.bytes_of(row)
    return f"{caught.value.reason}: {caught.value.detail}"


def test_bytes_of_a_row(index, photo):
    assert Fetcher(index).bytes_of(3) == Fetcher(index, 5.0, careful=True).bytes_of(3) == photo(61, 50)
    assert pickle.loads(pickle.dumps(Fetcher(index))).bytes_of(0) == photo(60, 50)


def test_a_shard_that_changed_is_given_up_and_the_rest_is_read(index, photo):
    os.utime(index.shard_paths[0], (1, 1))
    fetcher = Fetcher(index)
    assert reason(fetcher, 0).startswith("shard_changed: shard changed since it was indexed")
    assert fetcher.bytes_of(2) == photo(60, 50)


def test_a_shard_that_comes_back_is_read_again(index, photo, monkeypatch):
    path = index.shard_paths[0]
    os.rename(path, path + ".away")
    fetcher = Fetcher(index)
    assert reason(fetcher, 0) == "shard_changed: gone: No such file or directory"
    os.rename(path + ".away", path)
    assert "gone" in reason(fetcher, 1)  # for a while nobody asks again
    monkeypatch.setattr(fetch, "HOLD_OFF_S", 0.0)
    fetcher = Fetcher(index)
    os.rename(path, path + ".away")
    reason(fetcher, 0)
    os.rename(path + ".away", path)
    assert fetcher.bytes_of(0) == photo(60, 50)


def test_a_shard_cut_short_while_it_is_read(index):
    fetcher = Fetcher(index)
    fetcher.bytes_of(0)
    os.truncate(index.shard_paths[0], int(index.offset[1]) + 10)
    assert reason(fetcher, 1) == f"short_read: 10 of {index.length[1]} bytes"


def test_a_read_that_hangs_is_given_up_and_its_shard_left_alone(index, slow_storage, photo):
    slow_storage.hold(index.shard_paths[0])
    fetcher, begin = Fetcher(index, 0.4, careful=True), time.monotonic()
    assert [reason(fetcher, row) for row in (0, 1, 0)] == ["short_read: no answer within 0.4 s"] * 3
    assert time.monotonic() - begin < 2.4  # twice 0.4 s and a pause, once for all three
    assert fetcher.bytes_of(2) == photo(60, 50)


def test_a_shard_that_hung_is_left_alone_by_every_process(index, slow_storage, photo):
    waiting, other = Fetcher(index, 0.4, careful=True), Fetcher(index, 0.4)
    reader = Fetcher(index, 0.4)
    shutil.copy2(index.shard_paths[0], index.shard_paths[0] + ".copy")
    assert reader.bytes_of(0) == photo(60, 50)
    os.unlink(path := index.shard_paths[0])  # a lease needs a file that nobody has open
    shutil.copy2(path + ".copy", path)
    slow_storage.hold(path)
    reason(waiting, 0)
    assert reason(other, 1) == "short_read: no answer within 0.4 s"  # at once: it could not give up by itself
    assert reader.bytes_of(1) == photo(61, 50)  # who holds it open may read on
    slow_storage.release()
    time.sleep(fetch.STALLS * 0.4)
    assert Fetcher(index, 0.4).bytes_of(0) == photo(60, 50)


def test_bytes_that_are_not_what_the_sidecar_says(tmp_path, write_tar, photo):
    good = photo(60, 50)
    hashes = {
        "a": hashlib.sha256(good).hexdigest(), "b": hashlib.md5(good).hexdigest().upper(), "c": "some-uid",
        "d": hashlib.sha256(good + b"x").hexdigest(), "e": hashlib.md5(b"x").hexdigest(),
    }  # fmt: skip
    names = dict.fromkeys("ad", "sha256") | dict.fromkeys("be", "md5") | {"c": "uid"}
    members = [
        m for k, h in hashes.items() for m in ((f"{k}.jpg", good), (f"{k}.json", json.dumps({names[k]: h}).encode()))
    ]
    write_tar(tmp_path / "a/0.tar", members)
    split = SplitConfig(tar_data_sources=[TarSource(str(tmp_path / "a"))])
    index = build_index(split, "d", tmp_path / "i", max_pixels=10**9)
    reader = MicroBatchReader(index, None, [ViewSpec("32", 32)], None, 1, 5, verify_hashes=True)
    batch = reader.read_rows(range(5))
    assert batch.weight.tolist() == [1, 1, 1, 0, 0]
    assert [reason.partition(":")[0] for reason in batch.faults.values()] == ["hash_mismatch"] * 2
