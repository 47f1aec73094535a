"""Read ahead by threads: in order, and past what hangs."""

from __future__ import annotations

import threading
import time

import pytest

from radioplat.data.index.build import build_index
from radioplat.data.loading.reader import MicroBatchReader
from radioplat.data.loading.run_data import RunData
from radioplat.data.loading.threads import load_batches, load_micro_batches
from radioplat.data.views.render import ViewSpec
from radioplat.spec.schema.dataset import SplitConfig, TarSource


def test_in_order_and_ahead():
    read, done = [], []

    def one(item):
        time.sleep(0.02 if item % 3 == 0 else 0)
        read.append(item)
        return item

    for batch in load_batches(one, range(12), threads=3, prefetch=4):
        done.append(batch)
        time.sleep(0.02)
        assert len(read) - len(done) <= 5
    assert done == list(range(12)) == sorted(read)


def test_an_error_comes_where_the_batch_would_have_been():
    batches = load_batches(lambda item: 6 // (item - 3), range(6), threads=2, prefetch=3, timeout_s=5, careful=int)
    assert [next(batches) for _ in range(3)] == [-2, -3, -6]
    with pytest.raises(ZeroDivisionError):
        next(batches)


def test_after_one_hung_read_all_are_careful():
    release = threading.Event()

    def read(item):
        if item == 2:
            release.wait(20)
        return item

    begin = time.monotonic()
    found = list(load_batches(read, range(6), threads=1, prefetch=2, timeout_s=0.3, careful=lambda item: item + 100))
    release.set()
    assert found == [0, 1, 102, 103, 104, 105] and time.monotonic() - begin < 5


def test_micro_batches_of_a_shard_that_hangs_keep_their_place(tmp_path, write_tar, photo, slow_storage):
    for shard in range(3):
        write_tar(tmp_path / f"a/{shard}.tar", [(f"{shard}{i}.jpg", photo(60, 50)) for i in range(4)])
    split = SplitConfig(tar_data_sources=[TarSource(str(tmp_path / "a"))])
    data = RunData.create(build_index(split, "d", tmp_path / "i", max_pixels=10**9), split, 10**9)
    reader = MicroBatchReader(data.index, data.order, [ViewSpec("32", 32)], None, 1, 2, read_timeout_s=0.4)
    slow_storage.hold(data.index.shard_paths[1])
    batches = list(load_micro_batches(reader, range(6), threads=2, prefetch=2))
    slow_storage.release()
    assert [b.micro_batch for b in batches] == list(range(6))
    dead = [int(i) for b in batches for i, w in zip(b.sample_id, b.weight, strict=True) if w == 0]
    assert sorted(dead) == [4, 5, 6, 7]
    assert {r for b in batches for r in b.faults.values()} == {"short_read: no answer within 0.4 s"}
