"""Two writers on one second home: one that was thought dead and goes on, and the one that came after it."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

# The old writer is a process that stops itself (SIGSTOP) before its n-th operation on the second home. Meanwhile the
# new one starts there, and where it is busy saves and prunes; then the old one goes on to its end; then the new one
# saves and prunes.
PLAY = """
import dataclasses, json, os, signal, sys, threading
from pathlib import Path
import torch
from radioplat.training.checkpoints.checkpoint import RunState, snapshot
from radioplat.training.checkpoints.mirror import Mirror
from radioplat.training.checkpoints.writer import CheckpointWriter
from radioplat.models.heads import HeadArchitecture
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.spec.schema.train import TrainConfig

root, busy, points = Path(sys.argv[1]), sys.argv[2] == "busy", [int(n) for n in sys.argv[3].split(",")]
train = dataclasses.replace(TrainConfig(), keep_last=1)
student = Student(StudentArchitecture("test_efficientnet", heads=(HeadArchitecture("a", 4),)))
counting, left, home = False, 0, ""

def look(event, arguments):
    global left
    if counting and event in ("open", "os.rename", "os.remove", "os.rmdir", "os.scandir", "os.listdir"):
        if any(str(a).startswith(home) for a in arguments if isinstance(a, (str, os.PathLike))):
            left -= 1
            if left == 0:
                signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # this thread stops here, and so do all

sys.addaudithook(look)

def put(shelf, step, number):
    moments = {"x.exp_avg": torch.full((3,), float(number))}
    made = snapshot(f"model_epoch_{step:03d}", student, student.state_dict(), moments, RunState(step))
    shelf.put(lambda: made, lambda path: None)
    return shelf.wait()

def shelf(name):
    folder = root / str(n) / name
    folder.mkdir(parents=True)
    return CheckpointWriter(folder, train, Mirror(home))

for n in points:
    home = str(root / str(n) / "home")
    before = shelf("before")
    put(before, 1, 0)
    before.close()
    child = os.fork()
    if child == 0:
        old = shelf("old")
        counting, left = True, n
        outcome = put(old, 2, 1)
        counting = False
        Path(home, "..", "old.json").write_text(json.dumps([outcome.failures, outcome.fatal, outcome.reason]))
        os._exit(0)
    _, status = os.waitpid(child, os.WUNTRACED)
    stopped = os.WIFSTOPPED(status)
    if stopped:
        new = shelf("new")
        if busy:
            assert put(new, 2, 2).fatal == ""
        os.kill(child, signal.SIGCONT)
        os.waitpid(child, 0)
    os.system(f"cp -r {home} {home}_after_old")
    if stopped:
        assert put(new, 3, 2).fatal == ""
        new.close()
    print(n, int(stopped), flush=True)
    if not stopped:
        break
"""


def whole(home: Path) -> list[Path]:
    """Checkpoints in ``home`` whose manifest stands, and is right about every file."""
    found = []
    for manifest in home.glob("model_epoch_*/manifest.json"):
        sums = json.loads(manifest.read_text())
        files = [manifest.with_name(name) for name in sums]
        if all(f.is_file() and hashlib.sha256(f.read_bytes()).hexdigest() == sums[f.name] for f in files):
            found.append(manifest.parent)
    return found


def play(folder: Path, new: str, points: str) -> tuple[list[str], list[str]]:
    """Stop the old writer at each of ``points``; returns the points at which it was stopped, and what became of it."""
    command = [sys.executable, "-c", PLAY, folder, new, points]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr[-3000:]
    lines = [line.split() for line in ended.stdout.splitlines()]
    fates = []
    for number, stopped in lines:
        home, after = folder / number / "home", folder / number / "home_after_old"
        failures, fatal, reason = json.loads((folder / number / "old.json").read_text())
        assert whole(after), f"nothing is left: the old one went on at {number}"
        if stopped == "1":
            (kept,) = whole(home)
            assert json.loads((kept / "state.json").read_text())["global_step"] == 3
        fates.append(fatal or reason)
    return [number for number, stopped in lines if stopped == "1"], fates


@pytest.mark.proof
def test_a_writer_that_was_thought_dead_takes_nothing_away(tmp_path):
    stopped, fates = play(tmp_path, "idle", "1,5,10,15,16,17,18,22,26")
    assert len(stopped) == 9
    # Before its last look it finds out: by the new one's name, or because what it wrote was cleared.
    assert all(fates[:4]) and "has another writer by now: process" in fates[0], fates


@pytest.mark.proof
@pytest.mark.parametrize("new", ["idle", "busy"])
def test_at_every_single_operation(tmp_path, new):
    stopped, fates = play(tmp_path, new, ",".join(map(str, range(1, 100))))
    assert 12 < len(stopped) < 99, "it was stopped at every operation up to its end"
    assert sum(map(bool, fates)) >= 12, fates
