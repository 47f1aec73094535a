"""Log files of old attempts are packed, and nothing that is known of the attempts changes."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from radioplat.tracking.attempts.driver_log import driver_log
from radioplat.tracking.attempts.logs import attempt_folder, attempts_in, begun, cause_of, write_last_words
from radioplat.tracking.attempts.old_logs import KEPT, PACKED, pack_old_logs

ATTEMPTS = KEPT + 4
RANKS = 5


@pytest.fixture
def task(tmp_path: Path) -> Path:
    """A run whose attempts ended in several ways; workers of the last one never started."""
    for attempt in range(1, ATTEMPTS + 1):
        folder = attempt_folder(tmp_path, attempt)
        folder.mkdir(parents=True)
        (folder / "driver.log").write_text(f"driver of attempt {attempt}\n")
        for rank in range(RANKS):
            (folder / f"worker_{rank}.log").write_text(f"rank {rank} of attempt {attempt}\n" * 100)
            (folder / f"pulse_{rank}.json").write_text("{}")
        if attempt % 4 == 1:
            write_last_words(tmp_path, attempt, 3, "error", "ConnectionError: peer")
            write_last_words(tmp_path, attempt, 1, "oom", "out of memory")
        if attempt % 4 == 2:
            (folder / "stacks_2.txt").write_text("File train.py, line 1\n")
        if attempt % 4 == 3:
            write_last_words(tmp_path, attempt, 0, "error", "ValueError: mine")
    folder = attempt_folder(tmp_path, ATTEMPTS + 1)
    folder.mkdir()
    (folder / "driver.log").write_text("no worker started\n")
    return tmp_path


def _known(task: Path) -> tuple[object, ...]:
    return begun(task), attempts_in(task), [cause_of(task, n) for n in attempts_in(task)]


def _contents(folder: Path) -> dict[str, bytes]:
    """The files of an attempt, packed or not."""
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != PACKED}
    if (folder / PACKED).exists():
        with tarfile.open(folder / PACKED) as tar:
            files |= {member.name: tar.extractfile(member).read() for member in tar}
    return files


def test_old_attempts_are_packed_and_known_as_before(task):
    before = _known(task)
    contents = {n: _contents(attempt_folder(task, n)) for n in attempts_in(task)}
    assert {cause for cause, _ in before[2]} == {"", "oom", "hang", "error"}
    pack_old_logs(task)
    assert _known(task) == before
    for attempt in attempts_in(task):
        folder = attempt_folder(task, attempt)
        assert contents[attempt].items() <= _contents(folder).items()
        if attempt <= ATTEMPTS - KEPT:
            assert (folder / PACKED).exists() and len(list(folder.iterdir())) <= 2
        else:
            assert not (folder / PACKED).exists()


@pytest.mark.parametrize("place", range(0, 40, 3))
def test_a_call_that_is_killed_loses_nothing(task, monkeypatch, place):
    before, contents = _known(task), {n: _contents(attempt_folder(task, n)) for n in attempts_in(task)}
    done, unlink = [], Path.unlink

    def killed(self: Path, missing_ok: bool = False) -> None:
        if len(done) == place:
            raise KeyboardInterrupt
        done.append(self)
        unlink(self, missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", killed)
        try:
            pack_old_logs(task)
        except KeyboardInterrupt:
            assert place < 40
    assert _known(task) == before
    pack_old_logs(task)
    assert _known(task) == before
    for attempt, files in contents.items():
        assert files.items() <= _contents(attempt_folder(task, attempt)).items()
    assert len(list((task / "logs").glob("*/worker_*.log"))) == KEPT * RANKS


def test_what_a_late_process_writes_stays(task):
    pack_old_logs(task)
    late = attempt_folder(task, 1) / "worker_9.log"
    late.write_text("written after its folder was packed\n")
    pack_old_logs(task)
    assert late.exists()


def test_the_driver_packs_when_an_attempt_begins(task):
    with driver_log(task, lambda line: None) as say:
        say("a line")
        assert (attempt_folder(task, 1) / PACKED).exists()
        assert not (attempt_folder(task, ATTEMPTS - KEPT + 1) / PACKED).exists()
        folder = attempt_folder(task, ATTEMPTS + 1)
        (folder / "pulse_0.json").write_text("{}")
        attempt_folder(task, ATTEMPTS + 2).mkdir()
        say("a line of the next attempt")
        assert (attempt_folder(task, ATTEMPTS - KEPT + 1) / PACKED).exists()
