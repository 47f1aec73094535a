"""Shards on an object store: a real S3 server on loopback, which counts what it sends and can fail on request."""

from __future__ import annotations

import threading
from collections import Counter

import boto3
import numpy as np
import pytest
from botocore.config import Config
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

from benchmarks.array_source import ArraySource
from radioplat.data.index.build import build_index
from radioplat.data.index.survey import survey
from radioplat.data.loading.fetch import Fetcher
from radioplat.data.loading.reader import MicroBatchReader
from radioplat.data.order.order import SampleOrder
from radioplat.data.storage import probes, request_rate, retry
from radioplat.data.storage.files import RangeFile, list_files, read_range, stat_file
from radioplat.data.views.render import ViewSpec
from radioplat.errors import DataError
from radioplat.spec.schema.dataset import AugmentationConfig, SplitConfig, TarSource


class Store:
    """moto's S3 behind a counter: bytes sent and requests by method, and answers 503 while ``failures`` lasts."""

    def __init__(self) -> None:
        self._app = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self, threaded=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self.sent, self.requests, self.failures = 0, Counter(), 0
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def __call__(self, environ, start_response):
        self.requests[environ["REQUEST_METHOD"]] += 1
        if self.failures > 0:
            self.failures -= 1
            start_response("503 Slow Down", [("Content-Length", "0")])
            return [b""]
        body = b"".join(self._app(environ, start_response))
        self.sent += len(body)
        return [body]

    def reset(self) -> None:
        self.sent, self.requests, self.failures = 0, Counter(), 0

    def close(self) -> None:
        self._server.shutdown()


@pytest.fixture(scope="module")
def environment():
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }.items():  # fmt: skip
            patch.setenv(name, value)
        yield patch


@pytest.fixture(scope="module")
def store(environment):
    server = Store()
    environment.setenv("AWS_ENDPOINT_URL", server.url)
    yield server
    server.close()


@pytest.fixture(scope="module")
def client(store):
    made = boto3.client("s3", endpoint_url=store.url, config=Config(retries={"max_attempts": 1}))
    made.create_bucket(Bucket="corpus")
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory, client, write_tar, photo):
    """The same two shards in a local folder and in ``s3://corpus/set``; 40 large images of noise, with sidecars."""
    root, rng = tmp_path_factory.mktemp("local"), np.random.default_rng(0)
    for shard in range(2):
        members = []
        for i in range(20):
            image = photo(80 + i, 60) + rng.bytes(60_000)  # what follows a JPEG's end is never looked at
            members += [
                (f"{shard}/{i:03d}.jpg", image),
                (f"{shard}/{i:03d}.json", b'{"label": %d, "caption": "c"}' % i),
            ]
        path = write_tar(root / f"sub/{shard}.tar", members)
        client.upload_file(str(path), "corpus", f"set/sub/{shard}.tar")
    client.put_object(Bucket="corpus", Key="set/.hidden/x.tar", Body=b"x")
    client.put_object(Bucket="corpus", Key="set/readme.txt", Body=b"x")
    client.put_object(Bucket="corpus", Key="set-two/other.tar", Body=b"x")
    return root


@pytest.fixture(autouse=True)
def quick(store, folder, monkeypatch):
    monkeypatch.setattr(retry, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(request_rate, "_rates", {})
    store.reset()


def split(root) -> SplitConfig:
    return SplitConfig(tar_data_sources=[TarSource(str(root))])


def test_listing_and_states(folder, client):
    found = list_files("s3://corpus/set", lambda name: name.endswith(".tar"))
    assert [name for name, _ in found] == ["sub/0.tar", "sub/1.tar"]
    for name, state in found:
        assert state == stat_file(f"s3://corpus/set/{name}") == RangeFile(f"s3://corpus/set/{name}").state
        assert state.size == (folder / name).stat().st_size and state.mtime_ns > 0


def test_a_range_is_all_that_is_sent(folder, store):
    data = (folder / "sub/0.tar").read_bytes()
    assert read_range("s3://corpus/set/sub/0.tar", 1000, 5000) == data[1000:6000]
    assert store.sent <= 5000 + 1000
    assert read_range("s3://corpus/set/sub/0.tar", len(data) - 10, 100) == data[-10:]
    assert read_range("s3://corpus/set/sub/0.tar", len(data) + 10, 100) == b""


def test_the_index_is_that_of_the_local_folder_and_reads_headers_only(folder, store, tmp_path):
    size = sum(path.stat().st_size for path in folder.rglob("*.tar"))
    local = build_index(split(folder), "d", tmp_path / "local", max_pixels=10**9)
    store.reset()
    remote = build_index(split("s3://corpus/set"), "d", tmp_path / "remote", max_pixels=10**9)
    assert remote.fingerprint() == local.fingerprint() and len(remote) == 40
    assert remote.shard_paths == ["s3://corpus/set/sub/0.tar", "s3://corpus/set/sub/1.tar"]
    assert store.sent < 0.4 * size, (store.sent, size)
    store.reset()
    build_index(split("s3://corpus/set"), "d", tmp_path / "remote", max_pixels=10**9)
    assert store.sent < 5000 and store.requests["GET"] <= 2  # listed, and nothing is read again


def test_a_run_reads_by_offset(folder, store, tmp_path):
    index = build_index(split("s3://corpus/set"), "d", tmp_path / "index", max_pixels=10**9)
    local = build_index(split(folder), "d", tmp_path / "local", max_pixels=10**9)
    order = SampleOrder([ArraySource(np.arange(40), np.asarray(index.shard), np.ones(40))], [1.0], 3)
    store.reset()
    batches = [
        MicroBatchReader(i, order, [ViewSpec("32", 32)], AugmentationConfig(), 3, 4).read(2) for i in (index, local)
    ]
    assert (batches[0].views["32"].pixels == batches[1].views["32"].pixels).all() and not batches[0].faults
    wanted = int(index.length[batches[0].sample_id].sum())
    assert wanted <= store.sent < wanted + 20_000
    for shard, path in enumerate(index.shard_paths):
        index.check_shard(shard, stat_file(path))


def test_errors_that_pass_are_waited_for(folder, store, tmp_path):
    store.failures = 3
    index = build_index(split("s3://corpus/set"), "d", tmp_path / "index", max_pixels=10**9)
    assert len(index) == 40 and not len(index.faults) and store.failures == 0
    handle = RangeFile("s3://corpus/set/sub/0.tar")
    store.failures = 2
    assert handle.read(0, 100) == (folder / "sub/0.tar").read_bytes()[:100]


def test_a_sample_waits_for_a_store_that_is_overloaded_for_long(folder, store, tmp_path, monkeypatch):
    monkeypatch.setattr(probes, "FIRST_PAUSE_S", 0.01)
    index = build_index(split("s3://corpus/set"), "d", tmp_path / "index", max_pixels=10**9)
    fetcher = Fetcher(index, 60.0)
    expected = fetcher.bytes_of(3)
    store.failures = retry.ATTEMPTS + 1
    assert fetcher.bytes_of(3) == expected and store.failures == 0


def test_errors_that_stay_are_reported_once_and_soon(folder, store, client, tmp_path):
    store.failures = 10**6
    with pytest.raises(OSError, match="set/sub/0.tar"):
        read_range("s3://corpus/set/sub/0.tar", 0, 10)
    assert store.requests.total() <= 2 * retry.ATTEMPTS
    with pytest.raises(DataError, match=r"tar_data_sources\[0\].root_dir.*s3://corpus/set cannot be read"):
        build_index(split("s3://corpus/set"), "d", tmp_path / "index", max_pixels=10**9)
    store.reset()
    for gone in ("s3://corpus/nothing", "s3://no-such-bucket/set"):
        with pytest.raises(DataError, match=gone):
            build_index(split(gone), "d", tmp_path / "index", max_pixels=10**9)
    with pytest.raises(FileNotFoundError):
        read_range("s3://corpus/set/sub/7.tar", 0, 10)
    assert store.requests.total() < 12  # what is not there is not asked for again


def test_an_object_that_is_cut_or_replaced(folder, store, client, tmp_path):
    whole = (folder / "sub/0.tar").read_bytes()
    client.put_object(Bucket="corpus", Key="cut/0.tar", Body=whole[: len(whole) // 2])
    index = build_index(split("s3://corpus/cut"), "d", tmp_path / "index", max_pixels=10**9)
    assert 5 < len(index) < 15 and index.faults["reason"].to_pylist()[0] == "truncated_tar"
    client.put_object(Bucket="corpus", Key="cut/0.tar", Body=whole)
    with pytest.raises(DataError, match="bytes then"):
        index.check_shard(0, stat_file(index.shard_paths[0]))
    assert len(build_index(split("s3://corpus/cut"), "d", tmp_path / "index", max_pixels=10**9)) == 20


def test_a_survey_and_a_folder_of_images(folder, store, client, tmp_path, photo):
    found = survey("s3://corpus/set", [f"index_dir={tmp_path / 'a'}", "native_resolution_filter.min_long_side=90"])
    assert (found.shards, found.images, found.captions, found.rejected) == (2, 40, 40, {"min_long_side": 20})
    for i in range(3):
        client.put_object(Bucket="corpus", Key=f"images/class{i}/1.png", Body=photo(40, 30, "PNG"))
    found = survey("s3://corpus/images/", [f"index_dir={tmp_path / 'b'}"])
    assert (found.images, found.classes, found.formats) == (3, 3, {"PNG": 3})
