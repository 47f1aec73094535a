"""Runs that earlier versions recorded load, go on and are proved by this one; ``record.py`` makes them."""

from __future__ import annotations

import importlib.util
import json
import tarfile
from pathlib import Path

import pytest
import torch

import radioplat
from radioplat.cli import main as cli
from radioplat.data.index.build import build_index
from radioplat.spec.loading.load import load_spec
from radioplat.tasks.inspect.diagnose import diagnose
from radioplat.tasks.migrate.migrate_run import migrate_run
from radioplat.tracking.attempts.attempts import Attempts
from radioplat.tracking.attempts.goodput import goodput
from radioplat.tracking.record_versions import KINDS
from radioplat.training.accounting.prove import prove_run

HERE = Path(__file__).parent
RECORDED = sorted(HERE.glob("schema_*/run.tar.gz"))
_spec = importlib.util.spec_from_file_location("record", HERE / "record.py")
record = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(record)


@pytest.fixture(params=RECORDED, ids=lambda path: path.parent.name)
def recorded(request, tmp_path, monkeypatch) -> Path:
    """The task folder of a recorded run; the working directory is that of its relative paths."""
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path, filter="data")
    record.make_teacher(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "results" / "distill"


def test_every_archive_is_small():
    assert RECORDED and all(path.stat().st_size < 1.5 * 2**20 for path in RECORDED)


@pytest.mark.parametrize("named", [True, False], ids=["with versions.json", "as before versions.json"])
def test_it_goes_on_and_is_proved(recorded, named, tmp_path):
    versions = list((tmp_path / "results").rglob("versions.json"))
    assert {path.parent.name for path in versions} >= {"distill", "ledger", "data", "train"}
    for path in versions if not named else []:
        path.unlink()
    trained = radioplat.load_student(recorded / "model_latest")
    lines: list[str] = []
    result = radioplat.distill(record.spec(record.LAST_STEPS), say=lines.append)
    assert (result.resumed_from, result.global_step) == (record.STEPS, record.LAST_STEPS), lines
    # Nothing that decides the run differs: a changed field would be named here.
    assert [line for line in lines if "changed in the spec since" in line] == [
        f"results/distill: goes on from model_epoch_000_step_{record.STEPS:05d} at step {record.STEPS} of "
        f"{record.LAST_STEPS}; changed in the spec since: train.max_steps: {record.STEPS} -> {record.LAST_STEPS}"
    ]
    proof = prove_run(recorded, full=True)
    assert proof.holds and (proof.first_step, proof.expected) == (0, 4 * record.LAST_STEPS)
    assert diagnose(recorded).cause.startswith("no failure") and cli.main(["ledger", str(recorded)]) == 0
    assert [event.attempt for event in Attempts(recorded).read()] == [1, 1, 2, 2]
    assert goodput(recorded).samples == 4 * record.LAST_STEPS
    later = radioplat.load_student(recorded / "model_latest")
    changed = [not torch.equal(a, b) for a, b in zip(trained.parameters(), later.parameters(), strict=True)]
    assert any(changed), "the two steps moved the student that was recorded"
    records = json.loads((recorded / "versions.json").read_text())["records"]
    assert records and all(KINDS[kind].schema == schema for kind, schema in records.items())


def test_migrate_reads_all_its_records(recorded):
    states = migrate_run(recorded.parent)
    assert {state.record for state in states} >= {
        "status", "attempts", "accounts", "run_data", "ledger", "index_parts",
        "state.json", "windows.jsonl", "shards.parquet",
    }  # fmt: skip
    assert prove_run(recorded).holds and diagnose(recorded).cause.startswith("no failure")


def test_its_shards_give_the_same_index_in_another_folder(recorded):
    """The recorded index names another folder, so that here its files are read again, into the same rows."""
    split = load_spec(record.spec(record.STEPS)).dataset.train_dataset
    index = build_index(split, "dataset.train_dataset", recorded.parent / "index" / "train", max_pixels=10**9)
    state = json.loads((recorded / "model_latest" / "state.json").read_text())
    assert index.fingerprint() in state["order_fields"].values() and len(index) == 16
