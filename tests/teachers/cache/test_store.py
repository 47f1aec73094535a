"""A folder of features: many writers, a bound, and whatever may be wrong with a file costs its samples only."""

from __future__ import annotations

import os
import subprocess
import sys

import boto3
import numpy as np
import pytest
import torch
from moto.server import ThreadedMotoServer
from safetensors.torch import save_file

from radioplat.errors import SpecError
from radioplat.teachers.cache import file as cache_file
from radioplat.teachers.cache.file import KEY_BYTES, SUFFIX
from radioplat.teachers.cache.store import FeatureStore
from radioplat.tracking.record_versions import NewerRecord


def row_of(seed: int, numbers: int = 100) -> dict[str, np.ndarray]:
    return {"summary": np.random.default_rng(seed).integers(0, 1000, numbers).astype(np.uint16)}


def key_of(seed: int) -> bytes:
    return seed.to_bytes(KEY_BYTES, "big")


class TestStore:
    def test_two_processes_write_at_once(self, tmp_path, open_store, files):
        """Some keys are written by both; all are there, and each is whole."""
        script = """
import sys
import numpy as np
from radioplat.teachers.cache import file as cache_file
from radioplat.teachers.cache import store as cache_store
cache_store.WRITE_BYTES = 2000
store = cache_store.FeatureStore(sys.argv[1], 10**9)
print("up", flush=True)
sys.stdin.readline()
for seed in range(int(sys.argv[2]), int(sys.argv[2]) + 60):
    row = {"summary": np.random.default_rng(seed).integers(0, 1000, 100).astype(np.uint16)}
    store.put({seed.to_bytes(32, "big"): row})
store.close()
"""
        command = [sys.executable, "-c", script, str(tmp_path / "cache")]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        writers = [subprocess.Popen([*command, start], **pipes) for start in ("0", "40")]
        for writer in writers:
            assert writer.stdout.readline() == "up\n"
        for writer in writers:
            writer.stdin.write("\n")
            writer.stdin.flush()
        assert [writer.wait(60) for writer in writers] == [0, 0]
        store = open_store()
        found = store.get([key_of(seed) for seed in range(100)])
        for seed, row in enumerate(found):
            np.testing.assert_array_equal(row["summary"], row_of(seed)["summary"])
        assert len(store) == 100 and store.ignored == store.lost == 0 and len(files()) > 4
        assert {path.name for path in (tmp_path / "cache").iterdir()} == {path.name for path in files()}

    def test_what_others_write_is_found_while_running(self, open_store, monkeypatch):
        reader, writer = open_store(), open_store()
        writer.put({key_of(1): row_of(1)})
        writer.flush()
        assert reader.get([key_of(1)]) == [None]
        monkeypatch.setattr(reader, "_list_after", 0.0)
        [row] = reader.get([key_of(1)])
        np.testing.assert_array_equal(row["summary"], row_of(1)["summary"])

    def test_a_part_has_a_limit_also_in_one_call(self, open_store, files):
        store = open_store(16 * 1000)
        store.put({key_of(seed): row_of(seed) for seed in range(20)})  # 200 bytes each
        store.flush()
        assert len(files()) == 4 and len(open_store()) == 20

    @pytest.mark.parametrize(("seconds", "written"), [(0.0, True), (60.0, False)])
    def test_a_process_that_ends_at_once_loses_what_is_younger(self, seconds, written, open_store, tmp_path):
        script = """
import os, sys, time
import numpy as np
from radioplat.teachers.cache.store import FeatureStore
store = FeatureStore(sys.argv[1], 10**9, write_seconds=float(sys.argv[2]))
store.put({seed.to_bytes(32, "big"): {"summary": np.arange(9, dtype=np.uint16)} for seed in range(3)})
limit = time.monotonic() + 60
while not [name for name in os.listdir(sys.argv[1]) if name[0] != "."] and float(sys.argv[2]) == 0:
    assert time.monotonic() < limit
    time.sleep(0.01)
os._exit(7)
"""
        command = [sys.executable, "-c", script, str(tmp_path / "cache"), str(seconds)]
        assert subprocess.run(command).returncode == 7
        assert [row is not None for row in open_store().get([key_of(seed) for seed in range(3)])] == [written] * 3

    def test_outputs_of_any_shape_side_by_side(self, open_store):
        rows = [
            row_of(0),
            {"summary": np.arange(4, dtype=np.uint16), "spatial": np.arange(24, dtype=np.uint16).reshape(2, 3, 4)},
            {"named.logits": np.arange(7, dtype=np.uint16)},
            {"spatial": np.arange(16, dtype=np.uint16).reshape(2, 2, 4)},
        ]
        store = open_store()
        for i, row in enumerate(rows):
            store.put({key_of(i): row})
        store.close()
        for row, found in zip(rows, open_store().get([key_of(i) for i in range(4)]), strict=True):
            assert found.keys() == row.keys()
            for name, array in row.items():
                np.testing.assert_array_equal(found[name], array)

    @pytest.mark.parametrize("fault", ["cut", "empty", "head", "garbage", "other", "text"])
    def test_files_that_are_torn_or_foreign(self, fault, open_store, files, tmp_path):
        store = open_store()
        for seed in (1, 2):
            store.put({key_of(seed): row_of(seed)})
            store.flush()
        torn = files()[0]
        data = torn.read_bytes()
        if fault == "other":
            save_file({"weight": torch.zeros(3)}, torn)
        else:
            torn.write_bytes({
                "cut": data[:-1], "empty": b"", "head": data[:20], "garbage": os.urandom(500), "text": b"[1]" * 50,
            }[fault])  # fmt: skip
        again = open_store()
        found = again.get([key_of(1), key_of(2)])
        assert [row is None for row in found].count(True) == 1 and (again.ignored, len(again)) == (1, 1)

    def test_a_cache_with_files_of_a_newer_version_is_refused_and_stays(self, open_store, files, tmp_path, monkeypatch):
        reader, store = open_store(), open_store()
        store.put({key_of(1): row_of(1)})
        store.close()
        with monkeypatch.context() as newer:
            newer.setattr(cache_file, "_SCHEMA", 2)
            newer.setattr(cache_file, "__version__", "9.9")
            store = open_store()
            assert store.get([key_of(1)]) == [None], "a file of schema 1 is computed again by schema 2"
            store.put({key_of(2): row_of(2)})
            store.close()
        before = {path.name: path.read_bytes() for path in (tmp_path / "cache").iterdir()}
        assert len(before) == 2
        with pytest.raises(NewerRecord, match="its content has schema 2, written by radioplat 9.9; .* up to schema 1"):
            open_store()
        monkeypatch.setattr(reader, "_list_after", 0.0)  # one that is open already goes on
        assert [row is None for row in reader.get([key_of(1), key_of(2)])] == [False, True] and reader.ignored == 1
        assert {path.name: path.read_bytes() for path in (tmp_path / "cache").iterdir()} == before

    def test_files_that_vanish(self, open_store, files):
        store = open_store()
        for seed in (1, 2):
            store.put({key_of(seed): row_of(seed)})
        store.close()
        reader = open_store()
        for path in files():
            path.unlink()
        assert reader.get([key_of(1), key_of(2)]) == [None, None] and (reader.lost, len(reader)) == (1, 0)
        reader.put({key_of(1): row_of(1)})
        reader.flush()
        assert len(files()) == 1 and open_store().get([key_of(1)])[0] is not None

    def test_a_file_that_vanishes_while_it_is_read_from(self, open_store, files):
        store = open_store()
        for seed in (1, 2):
            store.put({key_of(seed): row_of(seed)})
        store.close()
        reader = open_store()
        reader.get([key_of(1)])
        files()[0].unlink()
        [row] = reader.get([key_of(2)])  # still open here
        np.testing.assert_array_equal(row["summary"], row_of(2)["summary"])

    def test_it_stays_within_its_bytes(self, open_store, files):
        said, most = [], 20_000
        stores = [open_store(most, say=said.append) for _ in range(2)]
        for seed in range(200):  # 200 bytes each, and what a file needs beside
            stores[seed % 2].put({key_of(seed): row_of(seed)})
        for store in stores:
            store.flush()
        used = sum(path.stat().st_size for path in files())
        assert 0.5 * most < used <= most
        assert len(said) == 2 and "feature_cache.max_bytes" in said[0]
        again = open_store(most)
        found = [row for row in again.get([key_of(seed) for seed in range(200)]) if row is not None]
        assert len(found) == len(again) > 20
        again.put({key_of(500): row_of(500, numbers=10_000)})
        again.flush()
        assert sum(path.stat().st_size for path in files()) == used

    def test_what_a_killed_writer_left(self, tmp_path, open_store):
        folder = tmp_path / "cache"
        folder.mkdir()
        old, young = folder / f".a{SUFFIX}.12", folder / f".b{SUFFIX}.13"
        for path in (old, young):
            path.write_bytes(b"half")
        os.utime(old, (0, 0))
        store = open_store()
        assert (old.exists(), young.exists(), store.ignored) == (False, True, 0)

    def test_a_folder_that_cannot_be(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(SpecError, match="cannot be used") as caught:
            FeatureStore(str(tmp_path / "file" / "cache"), 10**9)
        assert caught.value.problems[0].where == "feature_cache.dir"

    def test_a_folder_that_cannot_be_written_any_more(self, tmp_path, open_store):
        """The run goes on, and is told once."""
        said = []
        store = open_store(say=said.append)
        (tmp_path / "cache").rmdir()
        (tmp_path / "cache").write_text("")
        for seed in (1, 2):
            store.put({key_of(seed): row_of(seed)})
            store.flush()
        assert len(said) == 1 and "cannot be written to" in said[0]
        assert store.get([key_of(1)]) == [None]


class TestObjectStore:
    @pytest.fixture
    def bucket(self, monkeypatch):
        server = ThreadedMotoServer(port=0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        values = {
            "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true", "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        }  # fmt: skip
        for name, value in values.items():
            monkeypatch.setenv(name, value)
        client = boto3.client("s3", endpoint_url=values["AWS_ENDPOINT_URL"])
        client.create_bucket(Bucket="features")
        yield client
        server.stop()

    def test_kept_bounded_and_gone(self, bucket, open_store):
        folder, said = "s3://features/radio/cache", []
        store = open_store(20_000, folder, said.append)
        for seed in range(100):
            store.put({key_of(seed): row_of(seed)})
        store.close()
        listed = [o for o in bucket.list_objects_v2(Bucket="features")["Contents"] if o["Key"].endswith(SUFFIX)]
        assert 10_000 < sum(o["Size"] for o in listed) <= 20_000 and len(said) == 1
        reader = open_store(20_000, folder)
        found = reader.get([key_of(seed) for seed in range(100)])
        assert sum(row is not None for row in found) == len(reader) > 20
        for seed, row in enumerate(found):
            assert row is None or (row["summary"] == row_of(seed)["summary"]).all()
        late = open_store(20_000, folder)
        for o in listed:
            bucket.delete_object(Bucket="features", Key=o["Key"])
        assert set(map(type, late.get([key_of(seed) for seed in range(100)]))) == {type(None)}
        assert late.lost == len(listed)
