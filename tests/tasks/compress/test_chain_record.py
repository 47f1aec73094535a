"""``compress.json`` of another version."""

from __future__ import annotations

import json

import pytest

from radioplat.cli import main as cli
from radioplat.tasks.compress.chain_record import SCHEMA, Entry, Record
from radioplat.tracking.record_versions import NewerRecord, Versions


def test_a_newer_one_is_refused_by_name_and_stays(tmp_path, capfd):
    folder = tmp_path / "compress"
    record = Record(folder / "compress.json")
    record.entries["01_ptq"] = Entry("01_ptq", "ptq", "")
    record.write()
    content = json.loads(record.path.read_text())
    assert content["schema"] == SCHEMA and list(Record(record.path).entries) == ["01_ptq"]
    record.path.write_text(json.dumps(content | {"schema": SCHEMA + 1}))
    Versions("9.9", {"status": 1}).write(folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(NewerRecord, match=f"its content has schema {SCHEMA + 1}, written by radioplat 9.9"):
        Record(record.path)
    spec = {"results_dir": str(tmp_path), "compress": {"stages": ["ptq"]}}
    spec["dataset"] = {"val_dataset": {"images_dir": str(tmp_path)}}
    (tmp_path / "spec.yaml").write_text(json.dumps(spec))
    assert cli.main(["compress", "-e", str(tmp_path / "spec.yaml")]) == 1
    assert "written by radioplat 9.9" in " ".join(capfd.readouterr().err.split())
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
