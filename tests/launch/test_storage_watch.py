"""What the driver says of storage that is waited for: once when it fails, once when it is back."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from radioplat.data.storage import outage, probes
from radioplat.data.storage.outage import StorageWait, note_waits_in
from radioplat.launch import storage_watch
from radioplat.launch.storage_watch import StorageWatch
from radioplat.spec.schema.dataset import DatasetConfig
from radioplat.tracking.attempts.goodput import read_accounts
from radioplat.tracking.status import StatusLog, read_status
from radioplat.training.watch.phases import VALIDATION, Phases
from radioplat.training.watch.watchdog import Watchdog

EIO = OSError(5, "Input/output error")


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path):
    monkeypatch.setattr(probes, "FIRST_PAUSE_S", 0.02)
    monkeypatch.setattr(probes, "LONGEST_PAUSE_ALONE_S", 0.02)
    monkeypatch.setattr(storage_watch, "EVERY_S", 0.05)
    monkeypatch.setattr(storage_watch, "QUIET_S", 0.4)
    (tmp_path / "data").mkdir()
    note_waits_in(tmp_path / "data")
    yield
    note_waits_in(None)


def wait_for(seconds: float, path: str = "/corpus/1.tar") -> None:
    """A read that fails for so long."""
    end = time.monotonic() + seconds
    with StorageWait(path, time.monotonic(), 60.0) as wait:
        while time.monotonic() < end:
            wait.failed(EIO)


@pytest.fixture
def watched(tmp_path):
    """watched(what) -> lines to the user, and those in status.json as (verbosity, message), while ``what`` ran."""

    def run(what) -> tuple[list[str], list[tuple[str, str]]]:
        said: list[str] = []
        with (
            StatusLog(tmp_path / "status.json") as status,
            StorageWatch(tmp_path, DatasetConfig(), status, said.append),
        ):
            what()
        return said, [(line["verbosity"], line["message"]) for line in read_status(tmp_path / "status.json")]

    return run


def test_the_length_of_an_outage_is_in_the_accounts(watched, tmp_path):
    watched(lambda: (wait_for(0.6), time.sleep(0.8)))
    (line,) = read_accounts(tmp_path)
    assert line["event"] == "storage" and 0.4 < line["seconds"] < 1.2


def test_an_outage_of_many_reads_is_two_lines(watched):
    def many() -> None:
        threads = [threading.Thread(target=wait_for, args=(0.5, f"/corpus/{i}.tar")) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        time.sleep(0.1)  # less than what makes it another one
        wait_for(0.3)
        time.sleep(0.8)

    said, lines = watched(many)
    assert [message for _, message in lines] == said and [verbosity for verbosity, _ in lines] == ["WARNING", "INFO"]
    assert "/corpus/" in said[0] and "Input/output error" in said[0] and "1800 s at most" in said[0]
    assert said[1].startswith("storage can be read again, after ")


def test_a_run_that_ends_right_after_it_says_that_storage_is_back(watched):
    said, _ = watched(lambda: wait_for(0.4))
    assert len(said) == 2 and "again" in said[1]


def test_a_run_that_ends_for_it_does_not(watched):
    def fail() -> None:
        wait_for(0.4)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        watched(fail)
    said, _ = watched(lambda: time.sleep(0.2))
    assert said == []


def test_what_a_process_that_was_killed_noted_is_no_wait_for_ever(watched, tmp_path, monkeypatch):
    code = f"""
import time
from pathlib import Path
from radioplat.data.storage import outage, probes
probes.FIRST_PAUSE_S = 100
outage.note_waits_in(Path({str(tmp_path / "data")!r}))
with outage.StorageWait("/corpus/1.tar", time.monotonic(), 60.0) as wait:
    print("waits", flush=True)
    wait.failed(OSError(5, "Input/output error"))
"""
    assert watched(lambda: time.sleep(0.2))[0] == []
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "waits\n"
    while not outage.read_waits(tmp_path / "data"):
        time.sleep(0.02)
    process.kill()
    process.communicate()
    assert len(outage.read_waits(tmp_path / "data")) == 1
    assert watched(lambda: time.sleep(0.3))[0] == []  # of an earlier start
    assert outage.read_waits(tmp_path / "data") == {}


def test_a_validation_that_waits_for_storage_does_not_hang(tmp_path):
    phases, ends, said, stop = Phases(), [], [], threading.Event()
    phases.at(3)
    dog = Watchdog(phases, tmp_path, 1, 0, 1, 1.0, said.append, said.append, ends.append)
    reads = threading.Thread(target=wait_for, args=(2.5,))
    with phases(VALIDATION):
        reads.start()
        while reads.is_alive():
            stop.wait(0.3)  # as one waits for a thread that reads
        assert ends == [] and said == []
        stop.wait(3.0)  # storage is back, and it makes no progress all the same
    dog.close()
    assert ends
