"""One writer a results folder, and how soon another may follow."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace

import pytest

from radioplat.tracking.lease import NAME, Holder, Lease, LeaseTaken, check_lease, read_holder

HOLD = """
import sys, time
from pathlib import Path
from radioplat.tracking.lease import Lease
with Lease(Path(sys.argv[1]), print):
    print("held", flush=True)
    time.sleep(60)
"""

# Dies by SIGKILL before the n-th operation on a file name of "enter" or of "leave"; says "through" if there are fewer.
DIE = """
import os, signal, sys
from pathlib import Path
from radioplat.tracking.lease import Lease
folder, phase, left = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
now, count = "enter", 0
def look(event, arguments):
    global count
    names = [str(a) for a in arguments if isinstance(a, (str, os.PathLike))]
    touches = event in ("open", "os.link", "os.remove", "os.rename") and any("lease.json" in n for n in names)
    if now == phase and touches:
        count += 1
        if count == left:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(look)
with Lease(folder, print, beat_s=60):
    now = "leave"
now = ""
print("through")
"""


def die(folder, phase: str, number: int) -> bool:
    """Whether a process that entered and left was killed at operation ``number`` of ``phase``."""
    ended = subprocess.run(
        [sys.executable, "-c", DIE, folder, phase, str(number)], capture_output=True, text=True, timeout=30
    )
    assert (ended.returncode, ended.stdout) in ((-signal.SIGKILL, ""), (0, "through\n")), ended.stderr[-2000:]
    return ended.returncode != 0


def put(folder, holder: Holder) -> None:
    """A lease file as ``holder`` left it."""
    (folder / NAME).write_text(json.dumps(asdict(holder)))


@pytest.fixture
def elsewhere():
    """A holder whose process cannot be looked at from here."""
    return replace(Holder.myself(), host="node-7", place="node-7 boot pid:[1]")


def test_it_is_held_and_given_back(tmp_path):
    with Lease(tmp_path, pytest.fail) as lease:
        assert read_holder(tmp_path / NAME).pid == os.getpid()
        assert check_lease(tmp_path, lease.token) is None
        with pytest.raises(LeaseTaken, match=f"process {os.getpid()} on .*; it is alive.*takes over at once"):
            Lease(tmp_path, pytest.fail).__enter__()
    assert list(tmp_path.iterdir()) == []


def test_a_killed_holder_on_this_host_costs_no_wait(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    with pytest.raises(LeaseTaken, match=f"process {process.pid} "):
        Lease(tmp_path, pytest.fail).__enter__()
    process.kill()  # and not waited for: a zombie holds nothing
    while not read_holder(tmp_path / NAME).is_gone():
        time.sleep(0.01)
    begin = time.monotonic()
    with Lease(tmp_path, pytest.fail) as lease:
        assert time.monotonic() - begin < 2
        assert read_holder(tmp_path / NAME).token == lease.token
    process.wait()


def test_the_first_process_of_a_container_holds_its_lease_too(tmp_path, monkeypatch):
    """A run that is a container's command has the process id 1."""
    monkeypatch.setattr(os, "getpid", lambda: 1)
    with Lease(tmp_path, pytest.fail) as lease:
        assert read_holder(tmp_path / NAME).token == lease.token
    assert not (tmp_path / NAME).exists(), "it is given back"


def test_a_number_used_again_is_another_process(tmp_path):
    mine = Holder.myself()
    assert not mine.is_gone()
    assert replace(mine, born="1").is_gone()
    put(tmp_path, replace(mine, born="1"))
    with Lease(tmp_path, pytest.fail):
        pass


def test_a_silent_holder_elsewhere_is_waited_for_and_taken_over(tmp_path, elsewhere):
    put(tmp_path, elsewhere)
    lines, begin = [], time.monotonic()
    with Lease(tmp_path, lines.append, beat_s=0.2, stale_s=1.0) as lease:
        assert 0.8 < time.monotonic() - begin < 10
        assert "lost its driver" not in str(check_lease(tmp_path, lease.token))
        error = check_lease(tmp_path, elsewhere.token)
        assert "another run has taken this folder over" in str(error)
    assert len(lines) == 1 and "held by process" in lines[0] and "node-7" in lines[0]


@pytest.mark.parametrize("behind_s", [0, 3600, -3600])
def test_a_living_holder_elsewhere_is_found_out_by_its_sign(tmp_path, elsewhere, behind_s):
    """Whatever the clock that stamps its file: that of its own host, on some shared storages."""
    put(tmp_path, elsewhere)
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(0.2):
            os.utime(tmp_path / NAME, (time.time() - behind_s,) * 2)

    beat_once = (time.time() - behind_s,) * 2
    os.utime(tmp_path / NAME, beat_once)

    thread = threading.Thread(target=beat)
    thread.start()
    begin = time.monotonic()
    try:
        with pytest.raises(LeaseTaken, match="node-7.*sign of life"):
            Lease(tmp_path, lambda line: None, beat_s=0.2, stale_s=30).__enter__()
    finally:
        stop.set()
        thread.join()
    assert time.monotonic() - begin < 10, "its sign is enough; nobody waits until it would be stale"


@pytest.fixture
def restless():
    """Threads that take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("left", ["by a dead run", "by nobody", "and nameless", "with a right to it that is dead too"])
def test_of_many_that_come_at_once_one_gets_it(tmp_path, restless, left):
    for number in range(15):
        folder = tmp_path / str(number)
        folder.mkdir()
        dead = replace(Holder.myself(), born="1")
        if left != "by nobody":
            put(folder, dead)
        if left.startswith("with"):
            (folder / f".{NAME}.after.{dead.token}").write_text(json.dumps(asdict(replace(dead, token="late"))))
        if left == "and nameless":
            (folder / NAME).write_text("")
        stale_s = 0.3 if left == "and nameless" else 45.0  # nobody can see whether a nameless one has ended
        got, refused, gate = [], [], threading.Barrier(8)

        def come(folder=folder, got=got, refused=refused, gate=gate, stale_s=stale_s) -> None:
            """As a new run."""
            gate.wait()
            try:
                got.append(Lease(folder, lambda line: None, stale_s=stale_s, beat_s=0.1).__enter__())
            except LeaseTaken:
                refused.append(1)

        threads = [threading.Thread(target=come) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(got) == 1 and len(refused) == 7
        assert read_holder(folder / NAME).token == got[0].token
        got[0].__exit__(None, None, None)
        assert list(folder.iterdir()) == []


def test_a_folder_that_went_away_is_no_error_at_the_end(tmp_path):
    folder = tmp_path / "results"
    with Lease(folder, pytest.fail):
        shutil.rmtree(folder)
    assert not folder.exists()


def test_a_holder_that_was_taken_over_takes_nothing_away(tmp_path, elsewhere):
    with Lease(tmp_path, pytest.fail):
        put(tmp_path, elsewhere)
    assert read_holder(tmp_path / NAME) == elsewhere


def test_the_holder_keeps_it_fresh(tmp_path):
    with Lease(tmp_path, pytest.fail, beat_s=0.05):
        os.utime(tmp_path / NAME, (0, 0))
        deadline = time.monotonic() + 10
        while (tmp_path / NAME).stat().st_mtime == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert (tmp_path / NAME).stat().st_mtime > 0


def test_a_run_whose_folder_was_moved_writes_no_further(tmp_path):
    """It would create its folder again, with weights that another run would take for its own."""
    folder = tmp_path / "distill"
    with Lease(folder, pytest.fail) as lease:
        assert check_lease(folder, lease.token) is None
        folder.rename(tmp_path / "distill.before1")
        assert "was moved or removed" in str(check_lease(folder, lease.token))
        assert check_lease(folder, "") is None


def test_an_empty_token_is_not_held_to_it(tmp_path, elsewhere):
    put(tmp_path, elsewhere)
    assert check_lease(tmp_path, "") is None


@pytest.mark.parametrize("phase", ["enter", "leave"])
def test_a_kill_at_any_file_operation_costs_the_next_start_nothing(tmp_path, phase):
    number, killed = 1, True
    while killed:
        folder = tmp_path / str(number)
        folder.mkdir()
        if phase == "enter":
            put(folder, replace(Holder.myself(), born="1"))  # it takes a dead run's lease over
        killed = die(folder, phase, number)
        begin = time.monotonic()
        with Lease(folder, pytest.fail) as lease:
            assert read_holder(folder / NAME).token == lease.token
        assert time.monotonic() - begin < 2 and not (folder / NAME).exists()
        number += 1
    assert number > 5, "there are at least so many operations to be killed at"


def test_kills_one_after_the_other_in_one_folder(tmp_path):
    killed = [die(tmp_path, phase, number) for number in range(1, 8) for phase in ("leave", "enter")]
    assert sum(killed) > 10
    with Lease(tmp_path, pytest.fail):
        pass


def test_a_folder_that_an_earlier_version_left_stuck(tmp_path):
    """Killed while it released: lease and right to it name the same dead holder."""
    dead = replace(Holder.myself(), born="1")
    put(tmp_path, dead)
    (tmp_path / f".{NAME}.after.{dead.token}").write_text(json.dumps(asdict(dead)))
    with Lease(tmp_path, pytest.fail):
        pass
    assert list(tmp_path.iterdir()) == []
