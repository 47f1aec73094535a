"""``radioplat migrate run``."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from radioplat.cli import main as cli
from radioplat.spec.loading.load import load_spec
from radioplat.spec.resolved import retired
from radioplat.tracking.attempts.attempts import Attempts
from radioplat.tracking.lease import Lease
from radioplat.tracking.record_versions import KINDS, Versions

RETIRED = """# a spec
cluster:  # of mine
  spare_workers: true
train:
  num_epochs: 3  # as it was
"""


@pytest.fixture
def results(tmp_path) -> Path:
    """A results folder with one run that was written before ``versions.json`` existed, and one after."""
    for name in ("distill", "train"):
        folder = tmp_path / "run" / name
        Attempts(folder).start(1, 1, 0)
        (folder / "status.json").write_text('{"status": "STARTED"}\n')
        (folder / "model_epoch_001").mkdir()
        (folder / "model_epoch_001" / "state.json").write_text('{"schema": 1}')
        (folder / "ledger").mkdir()
        (folder / "ledger" / "consumed-a0001-r0000.parquet").write_bytes(b"")
    Versions("0.0.9", {"attempts": 1, "status": 1}).write(tmp_path / "run" / "train")
    return tmp_path / "run"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def migrate(capfd, path: Path) -> tuple[int, str]:
    """Run the command; return its status and all that it printed, in one line."""
    status = cli.main(["migrate", "run", str(path)])
    printed = capfd.readouterr()
    assert "Traceback" not in printed.err
    return status, " ".join((printed.out + printed.err).split())


def test_nothing_changes_if_nothing_is_older(results, capfd):
    before = contents(results)
    status, printed = migrate(capfd, results)
    assert status == 0 and "nothing was to be done" in printed and contents(results) == before
    for record in ("attempts", "status", "ledger", "state.json"):
        assert printed.count(f"{record} │ 1 │ as this version writes it") == 2, printed
    assert str(results / "distill" / "ledger") in printed.replace(" ", "")
    status, printed = migrate(capfd, results / "distill")
    assert status == 0 and "train" not in printed


def test_older_records_are_brought_up_and_once(results, capfd, monkeypatch):
    def later(files: Path) -> None:
        Attempts(files).start(9, 1, 0)

    monkeypatch.setitem(KINDS, "attempts", replace(KINDS["attempts"], schema=2, upgrades={1: later}))
    status, printed = migrate(capfd, results)
    assert status == 0 and printed.count("attempts │ 1 │ brought up to schema 2") == 2 and "2 of 8" in printed, printed
    for name in ("distill", "train"):
        assert Attempts(results / name).last == 9
        assert json.loads((results / name / "versions.json").read_text())["records"]["attempts"] == 2
        assert not (results / name / "lease.json").exists()
    before = contents(results)
    assert "nothing was to be done" in migrate(capfd, results)[1] and contents(results) == before


def test_a_field_that_is_gone_is_left_out_of_the_spec_of_a_run(results, capfd, monkeypatch):
    spec = results / "distill" / "experiment.yaml"
    spec.write_text("cluster:\n  warm_spares: false\n  mode: local\n")
    assert migrate(capfd, results)[0] == 1, "this version does not know the field"
    monkeypatch.setitem(retired.REMOVED, "cluster.warm_spares", "it was never of use")
    status, printed = migrate(capfd, results)
    assert status == 0 and "left out: cluster.warm_spares" in printed
    assert spec.read_text() == "cluster:\n  mode: local\n"
    assert "nothing was to be done" in migrate(capfd, results)[1]


def test_a_run_that_is_being_written_is_left_alone(results, capfd, monkeypatch):
    monkeypatch.setitem(KINDS, "attempts", replace(KINDS["attempts"], schema=2, upgrades={1: lambda files: None}))
    with Lease(results / "distill", print):
        status, printed = migrate(capfd, results / "distill")
    assert status == 1 and "another run writes this folder" in printed
    assert not (results / "distill" / "versions.json").exists()


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        (
            "train/versions.json",
            '{"radioplat": "9.9", "records": {"status": 2}}',
            "(status.json) has schema 2",
        ),
        ("train/experiment.yaml", "train: {tomorrow: 1}", "experiment.yaml: train.tomorrow: unknown field"),
        ("train/model_epoch_001/state.json", '{"schema": 4}', "state.json: its content has schema 4"),
        ("train/ledger/windows.jsonl", '{"schema": 2}\n', "windows.jsonl: its content has schema 2"),
        ("train/compress.json", '{"schema": 2}', "compress.json: its content has schema 2"),
    ],
)
def test_newer_records_are_refused_and_nothing_else_is_brought_up(results, capfd, monkeypatch, file, text, words):
    monkeypatch.setitem(KINDS, "attempts", replace(KINDS["attempts"], schema=2, upgrades={1: lambda files: None}))
    Versions("9.9", {"attempts": 1}).write(results / "train")
    (results / file).write_text(text)
    before = contents(results)
    status, printed = migrate(capfd, results)
    assert status == 1 and words in printed and contents(results) == before
    assert "ledger" in file or "yaml" in file or "written by radioplat 9.9" in printed


def test_a_folder_without_records_and_a_path_that_is_not_there(tmp_path, capfd):
    for path, reason in ((tmp_path, "no records of a run here"), (tmp_path / "none", "it does not exist")):
        status, printed = migrate(capfd, path)
        assert status == 1 and reason in printed


def test_a_spec_without_old_fields_stays(tmp_path, capfd):
    (tmp_path / "s.yaml").write_text("train: {num_epochs: 3}\n")
    status, printed = migrate(capfd, tmp_path / "s.yaml")
    assert status == 0 and "nothing is to be done" in printed and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("removed", [False, True])
@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (RETIRED, "# a spec\ntrain:\n  num_epochs: 3  # as it was\n"),
        ("cluster:\n  spare_workers: true\n  mode: local  # here\n", "cluster:\n  mode: local  # here\n"),
        ("cluster: {spare_workers: true, mode: local}  # lost\n", None),
        ("cluster: {spare_workers: true}\ntrain: {num_epochs: 2}\n", "train: {num_epochs: 2}\n"),
    ],
)
def test_fields_without_effect_are_left_out_of_a_copy(tmp_path, capfd, monkeypatch, text, kept, removed):
    field = "cluster.spare_workers"
    if removed:  # a made-up one, which this version's schema does not have
        text, field = text.replace("spare_workers", "warm_spares"), "cluster.warm_spares"
        monkeypatch.setitem(retired.REMOVED, field, "it was never of use")
    (tmp_path / "s.yaml").write_text(text)
    status, printed = migrate(capfd, tmp_path / "s.yaml")
    written = tmp_path / "s_radioplat.yaml"
    assert status == 0 and f"{field} is left out: " in printed and (tmp_path / "s.yaml").read_text() == text
    assert ("comments are lost" in printed) == (kept is None)
    assert written.read_text() == kept or yaml.safe_load(written.read_text()) == {"cluster": {"mode": "local"}}
    assert load_spec(written).cluster.spare_workers is False
    status, printed = migrate(capfd, tmp_path / "s.yaml")
    assert status == 1 and "exists" in printed
    status, printed = migrate(capfd, written)
    assert status == 0 and "nothing is to be done" in printed


def test_a_field_that_no_version_had_is_named_and_nothing_is_written(tmp_path, capfd):
    (tmp_path / "s.yaml").write_text("train: {num_epoch: 3}\n")
    status, printed = migrate(capfd, tmp_path / "s.yaml")
    assert status == 1 and "train.num_epoch: unknown field. Did you mean train.num_epochs?" in printed
    assert len(list(tmp_path.iterdir())) == 1
    shutil.copyfile(__file__, tmp_path / "s.yaml")
    assert migrate(capfd, tmp_path / "s.yaml")[0] == 1
