"""``versions.json``: newer records are refused, older ones are brought up, all or none."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from radioplat import __version__
from radioplat.errors import RadioplatError
from radioplat.tracking import record_versions
from radioplat.tracking.record_versions import KINDS, NewerRecord, Versions, check_readable, prepare_folder

OLD = {"attempts.jsonl": "1\n2\n", "accounts.jsonl": "old\n", "status.json": "{}\n"}


def contents(folder: Path) -> dict[str, str]:
    """Every file below ``folder``, hidden ones too."""
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def doubled(folder: Path) -> None:
    """Bring attempts up from schema 1 to a made-up schema 2: each number is doubled, one more file is written."""
    path = folder / "attempts.jsonl"
    path.write_text("".join(f"{2 * int(line)}\n" for line in path.read_text().splitlines()))
    assert not (folder / "status.json").exists(), "it gets copies of records that are older, of no others"


def renamed(folder: Path) -> None:
    """Bring accounts up from schema 1 to a made-up schema 2: another file name."""
    (folder / "accounts.jsonl").rename(folder / "goodput.json")


@pytest.fixture
def folder(tmp_path) -> Path:
    """A folder that was written before ``versions.json`` existed."""
    for name, text in OLD.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture
def schema_2(monkeypatch) -> None:
    """This version has schema 2 of attempts and accounts."""
    for kind, upgrade in (("attempts", doubled), ("accounts", renamed)):
        monkeypatch.setitem(KINDS, kind, replace(KINDS[kind], schema=2, upgrades={1: upgrade}))


def test_a_folder_without_the_file_has_schema_1_and_the_file_is_written_once(folder):
    assert prepare_folder(folder, ("status",)) == {}
    path = folder / record_versions.NAME
    assert json.loads(path.read_text()) == {"radioplat": __version__, "records": {"status": 1}}
    before = path.stat().st_mtime_ns
    assert prepare_folder(folder, ("status",)) == {} and path.stat().st_mtime_ns == before
    prepare_folder(folder, ("attempts",))
    assert json.loads(path.read_text())["records"] == {"attempts": 1, "status": 1}
    assert contents(folder) == {**OLD, path.name: path.read_text()}


@pytest.mark.parametrize(
    ("records", "words"),
    [
        (
            {"attempts": 2},
            ["record attempts (attempts.jsonl) has schema 2, written by radioplat 9.9", "up to schema 1"],
        ),
        ({"weather": 1}, ["record weather, unknown here, has schema 1", "up to schema 0"]),
        ({"status": 3, "attempts": 2}, ["record status (status.json) has schema 3", "record attempts"]),
    ],
)
def test_a_newer_record_is_refused_by_name_and_nothing_changes(folder, records, words):
    Versions("9.9", records).write(folder)
    before = contents(folder)
    for action in (lambda: prepare_folder(folder, ("status",)), lambda: check_readable(folder)):
        with pytest.raises(NewerRecord) as caught:
            action()
        message = str(caught.value)
        assert all(word in message for word in [*words, f"{folder}/versions.json: ", "Use radioplat 9.9 or a newer"])
        assert len(caught.value.problems) == len(records)
    assert contents(folder) == before


@pytest.mark.parametrize("text", ["", "[]", '{"radioplat": "1"}', '{"radioplat": "1", "records": {"status": "1"}}'])
def test_a_damaged_file_is_named_and_stays(folder, text):
    (folder / record_versions.NAME).write_text(text)
    for action in (lambda: prepare_folder(folder, ("status",)), lambda: check_readable(folder)):
        with pytest.raises(RadioplatError, match=r"versions\.json: is damaged"):
            action()
    assert (folder / record_versions.NAME).read_text() == text


def test_older_records_are_brought_up(folder, schema_2):
    with pytest.raises(RadioplatError, match="attempts of schema 1, accounts of schema 1.*radioplat migrate run"):
        check_readable(folder)
    assert contents(folder) == OLD
    assert prepare_folder(folder, ("status",)) == {"attempts": 1, "accounts": 1}
    written = contents(folder)
    assert json.loads(written.pop("versions.json")) == {
        "radioplat": __version__, "records": {"accounts": 2, "attempts": 2, "status": 1},
    }  # fmt: skip
    assert written == {"attempts.jsonl": "2\n4\n", "goodput.json": "old\n", "status.json": "{}\n"}
    check_readable(folder)
    assert prepare_folder(folder, ("status",)) == {} and contents(folder)["attempts.jsonl"] == "2\n4\n"


def test_steps_follow_each_other(folder, monkeypatch):
    monkeypatch.setitem(KINDS, "attempts", replace(KINDS["attempts"], schema=3, upgrades={1: doubled, 2: doubled}))
    assert prepare_folder(folder, ()) == {"attempts": 1}
    assert (folder / "attempts.jsonl").read_text() == "4\n8\n"


def test_an_upgrade_that_fails_or_is_not_there_changes_nothing(folder, schema_2, monkeypatch):
    def fails(folder: Path) -> None:
        (folder / "accounts.jsonl").write_text("half")
        raise ValueError("no number")

    monkeypatch.setitem(KINDS, "accounts", replace(KINDS["accounts"], upgrades={1: fails}))
    with pytest.raises(ValueError, match="no number"):
        prepare_folder(folder, ())
    monkeypatch.setitem(KINDS, "accounts", replace(KINDS["accounts"], upgrades={}))
    with pytest.raises(RadioplatError, match="record accounts has schema 1, which radioplat .* cannot bring up"):
        prepare_folder(folder, ())
    assert contents(folder) == OLD


KILLED = """
import os, signal, sys
from dataclasses import replace
from pathlib import Path
from radioplat.tracking.record_versions import KINDS, prepare_folder
folder, last = Path(sys.argv[1]), int(sys.argv[2])
changes = 0
def count(event, arguments):  # of every change of a name
    global changes
    if event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.copyfile"):
        changes += 1
        if changes == last:
            os.kill(os.getpid(), signal.SIGKILL)
def doubled(folder):
    path = folder / "attempts.jsonl"
    path.write_text("".join(f"{2 * int(line)}\\n" for line in path.read_text().splitlines()))
def renamed(folder):
    (folder / "accounts.jsonl").rename(folder / "goodput.json")
for kind, upgrade in (("attempts", doubled), ("accounts", renamed)):
    KINDS[kind] = replace(KINDS[kind], schema=2, upgrades={1: upgrade})
sys.addaudithook(count)
prepare_folder(folder, ("status",))
print(changes)
"""


def test_killed_at_any_change_it_is_whole_in_the_old_schema_or_in_the_new(tmp_path, schema_2):
    def run(folder: Path, last: int) -> subprocess.CompletedProcess:
        folder.mkdir()
        for name, text in OLD.items():
            (folder / name).write_text(text)
        command = [sys.executable, "-c", KILLED, str(folder), str(last)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    whole = run(tmp_path / "whole", 0)
    assert whole.returncode == 0, whole.stderr
    count, new = int(whole.stdout), contents(tmp_path / "whole")
    outcomes = set()
    for last in range(1, count + 1):
        folder = tmp_path / str(last)
        assert run(folder, last).returncode == -signal.SIGKILL
        left = contents(folder)
        # What an older version sees: the old records, untouched, or a file that makes it refuse them.
        versions = json.loads(left.get("versions.json", '{"records": {}}'))["records"]
        outcomes.add(versions.get("attempts", 1))
        if versions.get("attempts", 1) == 1:
            assert {name: left.get(name) for name in OLD} == OLD, last
        prepare_folder(folder, ("status",))
        for path in folder.glob(".versions.json.*"):  # the temporary file of one file that was being written
            path.unlink()
        assert contents(folder) == new, last
        assert not list(folder.glob(".*"))
    assert outcomes == {1, 2}
