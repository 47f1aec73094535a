"""Processes of a machine that wait for the same bucket: what each knows of the others is in files, as here."""

from __future__ import annotations

import os
import tempfile
import time
from multiprocessing.pool import ThreadPool

import pytest

from radioplat.data.storage import probes
from radioplat.data.storage.probes import Probes, probes_of
from radioplat.data.storage.request_rate import after_each_wait


@pytest.fixture
def process(tmp_path, monkeypatch):
    """process() -> what the reads of a further process share that wait for the same bucket."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(probes, "FIRST_PAUSE_S", 0.2)
    monkeypatch.setattr(probes, "LONGEST_PAUSE_S", 2.0)
    monkeypatch.setattr(probes, "_LOOK_S", 0.05)
    probes._probes.cache_clear()

    def make() -> Probes:
        probes._probes.cache_clear()
        return probes_of("s3://bucket/1.tar")

    yield make
    probes._probes.cache_clear()


def test_a_try_of_one_process_counts_for_all_and_its_success_lets_all_on(process):
    one, other = process(), process()
    assert one is not other and one.wait(False, time.monotonic() + 5)  # it has the turn
    calls: list[int] = []
    with after_each_wait(lambda: calls.append(1)), ThreadPool(4) as pool:
        begin = time.monotonic()
        waits = [pool.apply_async(other.wait, (False, begin + 10)) for _ in range(4)]
        while time.monotonic() < begin + 0.4:  # one's try goes on, and others begin
            time.sleep(0.05)
            one._marks.tried()
        assert not any(wait.ready() for wait in waits) and calls  # a timer of reads that hang is set anew
        one.succeeded()
        assert [wait.get(0.2 + 0.3) for wait in waits] == [False] * 4


def test_a_process_that_ended_in_its_try_is_followed_by_another(process):
    one, other = process(), process()
    assert one.wait(False, time.monotonic() + 5)
    begin = time.monotonic()
    assert other.wait(False, begin + 10) and time.monotonic() - begin < 1.0


@pytest.mark.parametrize("seconds", [10**7, -(10**7), None])
def test_files_that_say_nothing_stop_no_read(process, tmp_path, seconds):
    """Of before the clock was set back, of long ago, and files that cannot be written."""
    one, folder = process(), tmp_path / f"radioplat_storage_{os.getuid()}"
    if seconds is None:
        folder.write_text("a file in the place of the folder")
    else:
        one._marks.tried()
        (mark,) = folder.iterdir()
        os.utime(mark, (time.time() + seconds,) * 2)
    begin = time.monotonic()
    assert one.wait(False, begin + 10) and time.monotonic() - begin < 0.3
    one.succeeded()


@pytest.mark.parametrize("what", ["link", "open to others", "link to a file"])
def test_a_folder_that_somebody_else_made_is_left_alone(process, tmp_path, what):
    """Everybody may make the folder in /tmp first, as a link, with links in it, or open to all."""
    one, folder, victim = process(), tmp_path / f"radioplat_storage_{os.getuid()}", tmp_path / "victim"
    victim.mkdir()
    thesis = victim / one._marks._tried.name
    thesis.write_text("years of work")
    os.utime(thesis, (10**9,) * 2)
    if what == "link":
        folder.symlink_to(victim)
    elif what == "open to others":
        folder.mkdir()
        folder.chmod(0o777)
    else:
        folder.mkdir(mode=0o700)
        one._marks._tried.symlink_to(thesis)
    one._marks.tried()
    one._marks.answered()
    assert [path.name for path in victim.iterdir()] == [thesis.name] and thesis.stat().st_mtime == 10**9
    assert what == "link to a file" or one._marks.last_answer() == 0, "what others wrote there says nothing"
    if what == "open to others":
        assert not list(folder.iterdir())
        (folder / one._marks._answered.name).touch()
        assert one._marks.last_answer() == 0


def test_reads_that_are_let_on_are_spread(process):
    shared = process()
    with ThreadPool(17) as pool:

        def wait(_: int) -> float:
            shared.wait(False, time.monotonic() + 10)
            return time.monotonic()

        assert shared.wait(False, time.monotonic() + 5)
        waits = pool.map_async(wait, range(16), chunksize=1)
        time.sleep(0.2)
        shared.succeeded()
        begin = time.monotonic()
        ends = sorted(end - begin for end in waits.get(5))
    assert ends[-1] < 0.4 and ends[-1] - ends[0] > 0.08
