"""Setting checkpoints aside, broken off in the middle."""

from __future__ import annotations

import json
import signal

import pytest
from forked import Forked, run_code

START = """
import os, signal, sys
from pathlib import Path
from types import SimpleNamespace
from radioplat.training.checkpoints.resume import set_aside, starting_point
from radioplat.training.checkpoints.unreadable import UnreadableCheckpoints
from radioplat.spec.schema.root import Spec

left = int(sys.argv[2])
def look(event, arguments):
    global left
    if event in ("os.rename", "os.remove", "os.mkdir") and str(sys.argv[1]) in str(arguments[0]):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
run = SimpleNamespace(spec=Spec(), folder=Path(sys.argv[1]), task="distill")
try:
    starting_point(run)
except UnreadableCheckpoints as blocked:
    sys.addaudithook(look)
    print(set_aside(run, blocked))
assert starting_point(run) is None
"""


@pytest.mark.parametrize("at", [3, 5])
def test_a_kill_while_checkpoints_are_set_aside_loses_none(tmp_path, at):
    folder = tmp_path / "distill"
    for step in (1, 2, 3):
        (folder / f"model_epoch_00{step}").mkdir(parents=True)
        (folder / f"model_epoch_00{step}" / "state.json").write_text(json.dumps({"schema": 1, "global_step": step}))
    (folder / "model_latest").symlink_to("model_epoch_003")
    for number, code in ((at, -signal.SIGKILL), (0, 0)):
        ended = Forked(run_code, START, str(folder), str(number))
        assert ended.wait(60) == code, ended.output[-2000:]
    kept = sorted(path.relative_to(folder).parts[1:] for path in folder.rglob("state.json"))
    assert kept == [(f"model_epoch_00{step}", "state.json") for step in (1, 2, 3)]
    assert all(path.relative_to(folder).parts[0].startswith("set_aside_") for path in folder.rglob("state.json"))
    assert at == 5 or not (folder / "model_latest").is_symlink()
