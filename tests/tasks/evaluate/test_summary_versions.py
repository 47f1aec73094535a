"""The page of an evaluation whose checkpoint lies beside records of another version."""

from __future__ import annotations

import json

import pytest

from radioplat.evaluation.measure.findings import Findings
from radioplat.spec.loading.load import load_spec
from radioplat.tasks.evaluate.summary import write_summary
from radioplat.tracking.record_versions import Versions
from radioplat.tracking.results import TaskFolder


@pytest.mark.parametrize("newer", [False, True])
def test_curves_of_a_newer_version_are_left_out_and_it_is_named(tmp_path, newer):
    run = tmp_path / "distill"
    (run / "model_epoch_001").mkdir(parents=True)
    lines = [{"status": "RUNNING", "step": step, "kpi": {"loss": 1.0 / step}} for step in (1, 2, 3)]
    (run / "status.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    Versions("9.9", {"status": 2 if newer else 1}).write(run)
    folder = TaskFolder(tmp_path, "evaluate")
    path, _ = write_summary(load_spec(), folder, run / "model_epoch_001", Findings(), [])
    page = path.read_text()
    assert ("has schema 2, written by radioplat 9.9" in page, "<img" in page) == (newer, not newer)
