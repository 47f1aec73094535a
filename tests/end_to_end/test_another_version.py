"""Two versions on one folder, damage, and a link that was left behind: no start loses what another one trained."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import radioplat
from radioplat.cli import main as cli
from radioplat.errors import RadioplatError
from radioplat.spec.loading.load import load_spec
from radioplat.tasks.inspect.diagnose import diagnose
from radioplat.tasks.plan.plan import plan
from radioplat.tracking.attempts.attempts import Attempts
from radioplat.tracking.record_versions import KINDS, NewerRecord
from radioplat.tracking.status import read_status
from radioplat.training.accounting.prove import prove_run
from radioplat.training.checkpoints.checkpoint import newest
from radioplat.training.checkpoints.mirror import Mirror

EVERY_SECOND = ("train.checkpoint_interval=2", "train.checkpoint_interval_unit=step")
NAMES = ["model_epoch_000_step_00002", "model_epoch_001", "model_epoch_001_step_00006", "model_epoch_002"]


def written_tomorrow(folder: Path) -> None:
    """Give every checkpoint in ``folder`` a field that this version does not know, as the one that knows it would."""
    for path in folder.glob("model_epoch_*"):
        state = json.loads((path / "state.json").read_text()) | {"from_tomorrow": 1}
        (path / "state.json").write_text(json.dumps(state))
        sums = json.loads((path / "manifest.json").read_text())
        sums["state.json"] = hashlib.sha256((path / "state.json").read_bytes()).hexdigest()
        (path / "manifest.json").write_text(json.dumps(sums))


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of every checkpoint below ``folder``, wherever it was moved."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.parent.name.startswith("model_epoch_"))
    return {f"{path.parent.name}/{path.name}": hashlib.sha256(path.read_bytes()).digest() for path in files}


@pytest.mark.proof
@pytest.mark.parametrize("damage", ["another version", "torn"])
def test_checkpoints_none_of_which_can_be_read(quiet_run, distil, tmp_path, damage):
    folder = tmp_path / "run" / "distill"
    shutil.copytree(quiet_run.folder, folder, symlinks=True)
    if damage == "torn":
        for path in folder.glob("model_epoch_*"):
            (path / "student.safetensors").write_bytes(b"")
    else:
        written_tomorrow(folder)
    reason = "has the unknown field from_tomorrow" if damage != "torn" else "student.safetensors is missing or damaged"
    overrides = (f"results_dir={folder.parent}", *EVERY_SECOND)
    before = contents(folder)
    with pytest.raises(RadioplatError, match="shall the run begin anew without them") as caught:
        distil(quiet_run.file, *overrides)
    assert all(f"{name}: " in str(caught.value) for name in NAMES) and str(caught.value).count(reason) == 4
    assert contents(folder) == before and read_status(folder / "status.json")[-1]["status"] == "FAILURE"
    # Everybody says the same of it.
    assert [str(problem) for problem in plan(load_spec(quiet_run.file, overrides)).problems] == str(
        caught.value
    ).splitlines()
    found = diagnose(folder)
    assert "begin anew without them" in found.cause and sum(reason in line for line in found.evidence) >= 4
    with pytest.raises(RadioplatError, match=reason):
        prove_run(folder)
    # The answer: once.
    answer = (*overrides, "train.restart=true")
    assert any("will set it aside" in line for line in plan(load_spec(quiet_run.file, answer)).warnings)
    again = distil(quiet_run.file, *answer)
    assert "train.restart" in again.lines[0] and "starts fresh" in again.lines[1]
    assert (again.result.resumed_from, again.result.global_step) == (0, 8)
    aside = folder / "set_aside_1"
    assert sorted(path.name for path in aside.iterdir()) == NAMES and contents(aside) == before
    assert prove_run(folder).holds
    # A start after it, with the same command, goes on from what that one saved.
    for name in NAMES[2:]:
        shutil.rmtree(folder / name)
    third = distil(quiet_run.file, *answer)
    assert third.result.resumed_from == 4 and not (folder / "set_aside_2").exists()


@pytest.mark.proof
def test_a_newer_one_of_another_version_is_not_trained_over(quiet_run, distil, tmp_path):
    folder = tmp_path / "run" / "distill"
    shutil.copytree(quiet_run.folder, folder, symlinks=True)
    for name in NAMES[:2]:
        shutil.move(folder / name, tmp_path / name)
    written_tomorrow(folder)
    for name in NAMES[:2]:
        shutil.move(tmp_path / name, folder / name)
    before, overrides = contents(folder), (f"results_dir={folder.parent}", *EVERY_SECOND)
    with pytest.raises(RadioplatError, match="shall the run go on at step 4 without them"):
        distil(quiet_run.file, *overrides)
    assert contents(folder) == before
    again = distil(quiet_run.file, *overrides, "train.restart=true")
    assert again.result.resumed_from == 4
    assert sorted(path.name for path in (folder / "set_aside_1").iterdir()) == NAMES[2:]


@pytest.mark.proof
def test_the_same_on_a_second_home(make_spec, distil, tmp_path):
    home = tmp_path / "home"
    spec = make_spec(tmp_path / "run")
    overrides = (*EVERY_SECOND, "train.max_steps=4", f"train.checkpoint_dir={home}")
    first = distil(spec, *overrides)
    written_tomorrow(home / "distill")
    shutil.rmtree(first.folder)
    before = contents(home)
    with pytest.raises(RadioplatError, match="from_tomorrow(?s:.*)shall the run begin anew") as caught:
        distil(spec, *overrides)
    assert [str(problem) for problem in plan(load_spec(spec, overrides)).problems] == str(caught.value).splitlines()
    assert contents(home) == before
    again = distil(spec, *overrides, "train.restart=true", "train.keep_last=1")
    assert (again.result.resumed_from, again.result.global_step) == (0, 4)
    kept = contents(home)
    assert all(kept[name] == digest for name, digest in before.items()), "marked, neither replaced nor pruned"
    assert list(Mirror(str(home / "distill")).standings()) == ["model_epoch_001"]
    shutil.rmtree(first.folder)
    assert distil(spec, *overrides).result.resumed_from == 4


def files_in(folder: Path) -> dict[str, bytes]:
    """Every file below ``folder``."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("part", "records", "message"),
    [
        (".", {"accounts": 2}, r"record accounts \(accounts.jsonl, .*\) has schema 2"),
        (".", {"status": 7}, r"record status \(status.json\) has schema 7"),
        ("ledger", {"ledger": 2}, r"record ledger \(consumed-a\*.parquet.* has schema 2"),
        ("data", {"index_parts": 2}, r"record index_parts \(part-\*\) has schema 2"),
    ],
)
def test_a_newer_record_is_refused_by_name_by_all_that_read_it(quiet_run, tmp_path, capfd, part, records, message):
    folder = tmp_path / "run" / "distill"
    shutil.copytree(quiet_run.folder, folder, symlinks=True)
    path = folder / part / "versions.json"
    wrote = json.loads(path.read_text())
    assert wrote["radioplat"] == radioplat.__version__ and wrote["records"].keys() >= records.keys()
    path.write_text(json.dumps({"radioplat": "9.9", "records": records}))
    before = files_in(folder)
    for command in (
        ["distill", "-e", str(quiet_run.file), f"results_dir={folder.parent}", "train.max_steps=10"],
        ["diagnose", str(folder)],
        ["ledger", str(folder)],
    ):
        assert cli.main(command) == 1
        said = " ".join(capfd.readouterr().err.split())
        assert re.search(rf"versions.json: {message}, written by radioplat 9\.9; radioplat \S+ reads up to", said), said
    overrides = [f"results_dir={folder.parent}", "train.max_steps=10"]
    assert any(re.search(message, str(problem)) for problem in plan(load_spec(quiet_run.file, overrides)).problems)
    with pytest.raises(NewerRecord, match=message):
        radioplat.distill(quiet_run.file, [f"results_dir={folder.parent}", "train.max_steps=10"])
    assert files_in(folder) == before


@pytest.mark.proof
def test_a_ledger_of_a_newer_version_is_not_copied_back(make_spec, distil, tmp_path):
    home = tmp_path / "home"
    spec = make_spec(tmp_path / "run")
    overrides = (*EVERY_SECOND, f"train.checkpoint_dir={home}")
    first = distil(spec, *overrides, "train.max_steps=2")
    there = home / "distill" / "ledger"
    assert json.loads((there / "versions.json").read_text())["records"] == {"ledger": 1}
    shutil.rmtree(first.folder)
    old = (there / "versions.json").read_text()
    (there / "versions.json").write_text(json.dumps({"radioplat": "9.9", "records": {"ledger": 2}}))
    before = files_in(home / "distill" / "ledger")
    with pytest.raises(NewerRecord, match=r"record ledger \(.*has schema 2, written by radioplat 9\.9"):
        distil(spec, *overrides, "train.max_steps=4")
    assert files_in(there) == before and not list((first.folder / "ledger").glob("*.parquet"))
    (there / "versions.json").write_text(old)
    again = distil(spec, *overrides, "train.max_steps=4")
    assert again.result.resumed_from == 2 and prove_run(again.folder).holds


def test_an_older_record_is_brought_up_by_a_start(quiet_run, distil, tmp_path, monkeypatch):
    """Attempts get a made-up schema 2, whose file ends with one more event."""
    folder = tmp_path / "run" / "distill"
    shutil.copytree(quiet_run.folder, folder, symlinks=True)
    (folder / "versions.json").unlink()  # as before the file existed

    def with_a_line(files: Path) -> None:
        events = Attempts(files).read()
        Attempts(files).start(events[-1].attempt + 10, 1, 8)

    upgraded = dataclasses.replace(KINDS["attempts"], schema=2, upgrades={1: with_a_line})
    monkeypatch.setitem(KINDS, "attempts", upgraded)
    with pytest.raises(RadioplatError, match="attempts of schema 1(?s:.*)radioplat migrate run"):
        diagnose(folder)
    trail = distil(quiet_run.file, f"results_dir={folder.parent}", *EVERY_SECOND, "train.max_steps=10")
    assert any("attempts brought up from schema 1" in line for line in trail.lines)
    assert trail.result.resumed_from == 8 and 11 in [event.attempt for event in Attempts(folder).read()]
    assert json.loads((folder / "versions.json").read_text())["records"]["attempts"] == 2
    assert prove_run(folder).holds and diagnose(folder).cause.startswith("no failure")


DIE = """
import os, signal, sys
count = 0
def look(event, arguments):
    global count
    if event == "os.rename" and str(arguments[1]).endswith("model_latest"):
        count += 1
        if count == 2:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(look)
import radioplat
radioplat.distill(sys.argv[1], sys.argv[2:], say=print)
"""


def test_a_stale_link_is_put_right(quiet_run, distil, tmp_path):
    folder = tmp_path / "distill"
    shutil.copytree(quiet_run.folder, folder, symlinks=True)
    (folder / "model_latest").unlink()
    (folder / "model_latest").symlink_to(NAMES[1])
    again = distil(quiet_run.file, f"results_dir={tmp_path}", *EVERY_SECOND)
    assert "nothing is left to do" in again.lines[0]
    assert (folder / "model_latest").resolve() == again.result.checkpoint == folder / NAMES[3]


@pytest.mark.proof
def test_a_link_that_a_kill_left_behind_is_put_right(quiet_run, distil, tmp_path):
    overrides = [f"results_dir={tmp_path}", *EVERY_SECOND, "train.max_steps=4"]
    command = [sys.executable, "-c", DIE, str(quiet_run.file), *overrides]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert ended.returncode == -signal.SIGKILL, ended.stderr[-3000:]
    folder = tmp_path / "distill"
    assert (folder / "model_latest").resolve().name == NAMES[0] and newest(folder)[0].name == NAMES[1]
    again = distil(quiet_run.file, *overrides)
    assert "nothing is left to do" in again.lines[0]
    assert (folder / "model_latest").resolve() == again.result.checkpoint == folder / NAMES[1]
