"""The folder of an attempt's logs: numbers, last words, and output that outlives its process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from radioplat.tracking.attempts.driver_log import driver_log
from radioplat.tracking.attempts.logs import (
    attempt_folder,
    attempts_in,
    begun,
    cause_of,
    last_words,
    tee_output,
    write_last_words,
)


def test_an_attempt_has_begun_when_a_worker_lived(tmp_path):
    assert begun(tmp_path) == 0 and attempts_in(tmp_path) == []
    for number in (1, 2, 10):
        attempt_folder(tmp_path, number).mkdir(parents=True)
    (attempt_folder(tmp_path, 2) / "pulse_1.json").write_text("{}")
    assert attempts_in(tmp_path) == [1, 2, 10] and begun(tmp_path) == 2


def test_the_first_words_of_a_rank_stay_and_secrets_do_not(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "hush-hush-hush")
    attempt_folder(tmp_path, 1).mkdir(parents=True)
    write_last_words(tmp_path, 1, 0, "oom", "no memory, hush-hush-hush")
    write_last_words(tmp_path, 1, 0, "error", "and then the rest broke")
    write_last_words(tmp_path, 1, 1, "error", "connection closed by peer")
    (words, other) = last_words(tmp_path, 1)
    assert (words.rank, words.cause, other.cause) == (0, "oom", "error") and "hush" not in words.detail
    assert cause_of(tmp_path, 1)[0] == "oom" and cause_of(tmp_path, 2) == ("", "")


@pytest.mark.parametrize("ending", ["os._exit(3)", "os.kill(os.getpid(), 9)"])
def test_output_is_in_the_log_and_where_it_was_however_the_process_ends(tmp_path, ending):
    path = tmp_path / "logs" / "worker_0.log"
    code = (
        "import os, pathlib; from radioplat.tracking.attempts.logs import tee_output\n"
        f"tee_output(pathlib.Path({str(path)!r}))\n"
        "print('from python', flush=True); os.write(2, b'from below\\n'); os.system('echo from a child')\n" + ending
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.returncode in (3, -signal.SIGKILL)
    deadline = time.monotonic() + 10
    while "child" not in path.read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    said = path.read_text().splitlines()
    assert sorted(said) == ["from a child", "from below", "from python"]
    assert ended.stdout.splitlines() == ["from python", "from a child"] and "from below" in ended.stderr


def test_the_driver_writes_beside_the_attempt_of_then(tmp_path):
    heard = []
    with pytest.raises(ZeroDivisionError), driver_log(tmp_path, heard.append) as say:
        say("before any worker")
        folder = attempt_folder(tmp_path, 1)
        (folder / "pulse_0.json").write_text("{}")
        say("in the first")
        attempt_folder(tmp_path, 2).mkdir()
        say("in the second")
        1 / 0  # noqa: B018
    first, second = ((attempt_folder(tmp_path, n) / "driver.log").read_text() for n in (1, 2))
    assert "before any worker" in first and "in the first" in first and "second" not in first
    assert "in the second" in second and "ZeroDivisionError" in second
    assert heard == ["before any worker", "in the first", "in the second"]


def test_without_tee_nothing_is_copied_and_nothing_breaks(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    before = os.fstat(1).st_ino
    tee_output(tmp_path / "worker_0.log")
    assert os.fstat(1).st_ino == before and not (tmp_path / "worker_0.log").exists()
