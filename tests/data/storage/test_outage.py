"""Storage that fails as a whole is waited for; data that is bad is not. Faults are made from outside the reader."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from multiprocessing.pool import ThreadPool
from pathlib import Path

import pyarrow as pa
import pytest

from radioplat.data.images.decode import BadSample
from radioplat.data.index.build import build_index
from radioplat.data.index.shard_index import ShardIndex
from radioplat.data.loading.fetch import Fetcher
from radioplat.data.storage import outage, probes, retry
from radioplat.data.storage.files import RangeFile, stat_file
from radioplat.data.storage.outage import StorageWait, is_waiting, note_waits_in, read_waits
from radioplat.errors import StorageError
from radioplat.spec.schema.dataset import SplitConfig, TarSource

READER = """
import sys, time, traceback
from radioplat.data.storage import outage, probes, retry
from radioplat.data.images.decode import BadSample
from radioplat.data.loading.fetch import Fetcher
from radioplat.data.index.shard_index import ShardIndex
from pathlib import Path
retry.FIRST_PAUSE_S, probes.FIRST_PAUSE_S = 0.001, 0.05
probes.LONGEST_PAUSE_S = probes.LONGEST_PAUSE_ALONE_S = 0.1
folder, timeout, storage_timeout, careful = Path(sys.argv[1]), *map(float, sys.argv[2:4]), sys.argv[4] == "careful"
outage.note_waits_in(folder)
fetcher = Fetcher(ShardIndex.load(folder), timeout, careful, storage_timeout)
print("ready", flush=True)
for line in sys.stdin:
    try:
        print(len(fetcher.bytes_of(int(line))), flush=True)
    except Exception as error:
        print(type(error).__name__, str(error).replace(chr(10), " "), flush=True)
"""


class Reader:
    """A process that reads samples of an index with faults preloaded."""

    def __init__(self, folder: Path, environment: dict, timeout: float, storage_timeout: float, careful: bool) -> None:
        how = [str(folder), str(timeout), str(storage_timeout), "careful" if careful else ""]
        self._process = subprocess.Popen(
            [sys.executable, "-c", READER, *how],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
        )
        assert self._process.stdout.readline() == "ready\n"

    def ask(self, row: int) -> None:
        self._process.stdin.write(f"{row}\n")
        self._process.stdin.flush()

    def answer(self) -> str:
        return self._process.stdout.readline().strip()

    def read(self, row: int) -> str:
        self.ask(row)
        return self.answer()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def make_index(tmp_path, write_tar, photo, shards: int = 3) -> ShardIndex:
    for shard in range(shards):
        write_tar(tmp_path / f"a/{shard}.tar", [(f"{shard}{i}.jpg", photo(60 + i, 50)) for i in range(2)])
    split = SplitConfig(tar_data_sources=[TarSource(str(tmp_path / "a"))])
    return build_index(split, "d", tmp_path / "i", max_pixels=10**9)


@pytest.fixture
def index(tmp_path, write_tar, photo) -> ShardIndex:
    return make_index(tmp_path, write_tar, photo)


@pytest.fixture
def reader(index, failing_reads):
    """reader(timeout, storage_timeout, careful) -> a :class:`Reader` of ``index``."""
    begun = []

    def make(timeout: float = 60.0, storage_timeout: float = 60.0, careful: bool = False) -> Reader:
        begun.append(Reader(index.directory, failing_reads.environment, timeout, storage_timeout, careful))
        return begun[-1]

    yield make
    for process in begun:
        process.close()


@pytest.fixture
def quick(monkeypatch) -> None:
    """Pauses of a test."""
    monkeypatch.setattr(retry, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(probes, "FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr(probes, "LONGEST_PAUSE_S", 0.1)
    monkeypatch.setattr(probes, "LONGEST_PAUSE_ALONE_S", 0.1)


def wait_until(condition, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_disk_that_fails_is_waited_for_and_said_once(index, reader, failing_reads):
    process = reader()
    failing_reads.fail("/a/")
    process.ask(1)
    wait_until(lambda: read_waits(index.directory))
    wait_until(lambda: [note for note in read_waits(index.directory).values() if note.tries > 5])
    (note,) = read_waits(index.directory).values()
    assert note.path == index.shard_paths[0] and note.answer == "Input/output error"
    failing_reads.mend()
    assert process.answer() == str(index.length[1])
    assert read_waits(index.directory) == {}


def test_a_disk_that_fails_for_too_long_is_a_named_error(index, reader, failing_reads):
    process = reader(storage_timeout=0.5)
    failing_reads.fail("/a/")
    begin = time.monotonic()
    found = process.read(1)
    assert found.startswith("StorageError dataset.storage_timeout_s: ") and index.shard_paths[0] in found
    assert "Input/output error" in found and "run the same command again" in found
    assert 0.5 <= time.monotonic() - begin < 3
    failing_reads.mend()
    assert process.read(1) == str(index.length[1])


def test_a_shard_that_alone_fails_is_given_up_as_bad_data(index, reader, failing_reads):
    process = reader(timeout=0.6)
    failing_reads.fail("/a/0.tar")
    begin = time.monotonic()
    assert process.read(0) == "BadSample short_read: Input/output error"
    assert 0.6 < time.monotonic() - begin < 4
    assert process.read(2) == str(index.length[2])
    assert reader(timeout=0.6).read(1) == "BadSample short_read: no answer within 0.6 s"  # by other processes, too


def test_a_store_that_hangs_as_a_whole_is_waited_for(index, reader, failing_reads):
    process = reader(timeout=0.3, careful=True)
    assert process.read(0) == str(index.length[0])
    failing_reads.hang("/a/")
    process.ask(1)
    wait_until(lambda: [note for note in read_waits(index.directory).values() if note.tries > 3])
    (note,) = read_waits(index.directory).values()
    assert note.answer == "no answer within 0.3 s" and note.seconds > 3 * 0.3
    failing_reads.mend()
    assert process.answer() == str(index.length[1])


def test_a_folder_that_vanished_is_waited_for_and_one_shard_is_not(index, quick, photo):
    fetcher, root = Fetcher(index, 60.0), Path(index.shard_paths[0]).parent
    os.unlink(index.shard_paths[2])
    with pytest.raises(BadSample, match="shard_changed"):
        fetcher.bytes_of(4)
    for left in (False, True):  # the mount point goes too, or stays as an empty folder
        root.rename(away := root.with_name("away"))
        if left:
            root.mkdir()
        threading.Timer(0.6, lambda: (shutil.rmtree(root, ignore_errors=True), away.rename(root))).start()
        assert Fetcher(index, 60.0).bytes_of(0) == photo(60, 50)


def test_a_read_that_ends_early_is_bad_data_only_where_the_file_is_short(index, reader, failing_reads):
    process = reader()
    failing_reads.cut("/a/")
    process.ask(1)
    wait_until(lambda: read_waits(index.directory))
    (note,) = read_waits(index.directory).values()
    assert f"ended after 0 of {index.length[1]} bytes" in note.answer
    failing_reads.mend()
    assert process.answer() == str(index.length[1])
    os.truncate(index.shard_paths[0], int(index.offset[1]) + 10)
    assert process.read(1) == f"BadSample short_read: 10 of {index.length[1]} bytes"


class Store:
    """``s3_folder.py`` as a process."""

    def __init__(self, folder: Path, keys: Path, port: int = 0) -> None:
        script = Path(__file__).with_name("s3_folder.py")
        self._process = subprocess.Popen(
            [sys.executable, script, folder, str(port), keys], stdout=subprocess.PIPE, text=True
        )
        self.port = int(self._process.stdout.readline())

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()


@pytest.fixture
def s3(tmp_path, write_tar, photo, monkeypatch, quick):
    """A function that starts the store, and the index of the shards in its bucket."""
    local = make_index(tmp_path, write_tar, photo)
    shutil.copytree(tmp_path / "a", tmp_path / "store" / "bucket")
    times = [path.stat().st_mtime_ns // 10**9 * 10**9 for path in sorted((tmp_path / "store" / "bucket").iterdir())]
    shards = local.shards
    for name, column in (("root", ["s3://bucket"] * len(shards)), ("mtime_ns", times)):
        shards = shards.set_column(shards.schema.get_field_index(name), name, pa.array(column))
    credentials = tmp_path / "credentials"
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {
        "AWS_SHARED_CREDENTIALS_FILE": str(credentials), "AWS_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    begun: list[Store] = []

    def sign_as(key: str) -> None:
        credentials.write_text(f"[default]\naws_access_key_id={key}\naws_secret_access_key=s\naws_session_token=t\n")

    def start(port: int = 0) -> Store:
        begun.append(Store(tmp_path / "store", tmp_path / "keys", port))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{begun[-1].port}")
        return begun[-1]

    sign_as("OLD")
    yield start, ShardIndex(shards, local.faults, local.classes, local.directory), sign_as
    for store in begun:
        store.kill()


def test_a_store_that_is_killed_is_waited_for_until_it_is_back(s3, photo):
    start, index, _ = s3
    store = start()
    fetcher = Fetcher(index, 60.0)
    assert fetcher.bytes_of(0) == photo(60, 50)
    store.kill()
    threading.Timer(1.0, start, (store.port,)).start()
    assert fetcher.bytes_of(1) == photo(61, 50) and fetcher.bytes_of(2) == photo(60, 50)
    with pytest.raises(BadSample, match="shard_changed"):
        os.unlink(Path(os.environ["AWS_SHARED_CREDENTIALS_FILE"]).parent / "store/bucket/2.tar")
        fetcher.bytes_of(4)


def test_credentials_that_expired_are_read_anew(s3, photo, tmp_path):
    start, index, sign_as = s3
    start()
    fetcher = Fetcher(index, 60.0)
    assert fetcher.bytes_of(0) == photo(60, 50)
    (tmp_path / "keys").write_text("NEW")  # the old ones are refused from now on
    threading.Timer(0.8, sign_as, ("NEW",)).start()
    assert fetcher.bytes_of(1) == photo(61, 50) and fetcher.bytes_of(2) == photo(60, 50)


def test_credentials_that_stay_expired_end_in_a_named_error(s3, tmp_path):
    start, index, _ = s3
    start()
    (tmp_path / "keys").write_text("NEW")
    with pytest.raises(StorageError, match=r"s3://bucket/0.tar could not be read for 1 s.*HTTP status 400"):
        Fetcher(index, 60.0, storage_timeout_s=1.0).bytes_of(0)


def test_new_credentials_that_are_at_hand_are_taken_at_once_by_every_kind_of_access(s3, tmp_path):
    start, index, sign_as = s3
    start()
    path = index.shard_paths[0]
    file = RangeFile(path)
    (tmp_path / "keys").write_text("NEW")
    sign_as("NEW")
    assert len(file.read(0, 100)) == 100 and stat_file(path) == file.state


def test_a_bucket_that_is_away_is_waited_for_and_an_object_is_not(s3, photo, tmp_path):
    start, index, _ = s3
    start()
    bucket = tmp_path / "store" / "bucket"
    bucket.rename(away := bucket.with_name("away"))
    threading.Timer(0.6, away.rename, (bucket,)).start()
    assert Fetcher(index, 60.0).bytes_of(0) == photo(60, 50)
    (bucket / "0.tar").unlink()
    with pytest.raises(BadSample, match="shard_changed"):
        Fetcher(index, 60.0).bytes_of(1)


class Broken:
    """Parts of the store that fail, and the requests that reach it."""

    def __init__(self, folder: Path) -> None:
        self._broken, self._requests = folder / "broken", folder / "requests"

    def set(self, *parts: str) -> None:
        aside = self._broken.with_suffix(".aside")
        aside.write_text("\n".join(parts))
        aside.replace(self._broken)

    def requests(self, since: float) -> int:
        return sum(float(line.split()[0]) >= since for line in self._requests.read_text().splitlines())


def test_one_read_at_a_time_tries_a_store_that_is_down_and_all_go_on_soon_after(s3, tmp_path):
    start, index, _ = s3
    start()
    broken, threads = Broken(tmp_path), 16
    with ThreadPool(threads) as pool:
        fetcher = Fetcher(index, 60.0)
        pool.map(fetcher.bytes_of, range(6))
        broken.set("/bucket/")
        reads = pool.map_async(fetcher.bytes_of, [row % 6 for row in range(threads)], chunksize=1)
        wait_until(lambda: len(outage._waiting) == threads)
        since = time.time()
        time.sleep(3.0)
        tries = broken.requests(since)
        assert 3.0 / 0.1 / 2 <= tries <= 3.0 / 0.07 + 5  # of one read: a request each 0.07 to 0.1 s
        broken.set()
        assert [len(data) for data in reads.get(2.0)] == [int(index.length[row % 6]) for row in range(threads)]


@pytest.mark.proof
def test_an_object_that_fails_alone_holds_up_no_other_read(s3, tmp_path):
    start, index, _ = s3
    start()
    broken = Broken(tmp_path)
    broken.set("/bucket/")
    fetcher = Fetcher(index, 60.0, storage_timeout_s=6.0)
    with ThreadPool(8) as pool:
        bad = pool.apply_async(fetcher.bytes_of, (0,))
        wait_until(is_waiting)  # it has the turn
        good = pool.map_async(fetcher.bytes_of, (2, 3, 4, 5), chunksize=1)
        wait_until(lambda: len(outage._waiting) == 5)
        broken.set("/bucket/0.tar")
        assert [len(data) for data in good.get(3.0)] == [int(index.length[row]) for row in (2, 3, 4, 5)]
        with pytest.raises(StorageError, match="HTTP status 500"):
            bad.get(15.0)


def test_a_read_that_waits_for_the_try_of_another_keeps_its_time_limit(s3, tmp_path, monkeypatch):
    start, index, _ = s3
    start()
    Broken(tmp_path).set("/bucket/")
    monkeypatch.setattr(probes, "FIRST_PAUSE_S", 20.0)
    monkeypatch.setattr(probes, "LONGEST_PAUSE_S", 20.0)

    def read(row: int) -> tuple[str, float]:
        begin = time.monotonic()
        with pytest.raises(StorageError) as error:
            Fetcher(index, 60.0, storage_timeout_s=1.0).bytes_of(row)
        return str(error.value), time.monotonic() - begin

    with ThreadPool(4) as pool:
        for said, seconds in pool.map(read, range(4), chunksize=1):
            assert "could not be read for 1 s" in said and 1.0 <= seconds < 3


def test_a_read_that_waits_alone_goes_on_when_another_of_its_folder_succeeds(quick, monkeypatch):
    def wait(path: str, pause: float) -> float:
        monkeypatch.setattr(probes, "FIRST_PAUSE_S", pause)
        began = time.monotonic()
        with StorageWait(path, began, 60.0) as waiting:
            waiting.failed(OSError(5, "Input/output error"))
        return time.monotonic() - began

    with ThreadPool(3) as pool:
        one, other = pool.apply_async(wait, ("/x/1.tar", 30.0)), pool.apply_async(wait, ("/y/1.tar", 3.0))
        wait_until(lambda: len(outage._waiting) == 2)
        assert wait("/x/2.tar", 0.1) < 0.2
        assert one.get(2.0) < 2 < other.get(5.0)


def test_a_wait_is_noted_while_any_read_of_the_process_waits(tmp_path, quick):
    note_waits_in(tmp_path)
    try:
        with StorageWait("/x/1.tar", time.monotonic(), 60.0) as first:
            first.failed(OSError(5, "Input/output error"))
            assert is_waiting() and [note.path for note in read_waits(tmp_path).values()] == ["/x/1.tar"]
            done = threading.Event()

            def other() -> None:
                with StorageWait("/x/2.tar", time.monotonic(), 60.0) as second:
                    second.failed(OSError(5, "Input/output error"))
                done.set()

            threading.Thread(target=other).start()
            assert done.wait(10) and is_waiting() and len(read_waits(tmp_path)) == 1
        assert not is_waiting() and read_waits(tmp_path) == {}
        (tmp_path / outage.FOLDER / "torn.json").write_text('{"path": ')
        (tmp_path / outage.FOLDER / "old.json").write_text(json.dumps({"who": "knows"}))
        assert read_waits(tmp_path) == {}
    finally:
        note_waits_in(None)
