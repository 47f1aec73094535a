"""A sweep of another version."""

from __future__ import annotations

import pytest

from radioplat.quickstart.defaults import RADIO_VIT as SPEC
from radioplat.tasks.tune.trial_record import TrialRecord
from radioplat.tasks.tune.tune import tune
from radioplat.tracking.record_versions import NewerRecord, Versions


def test_a_newer_sweep_is_refused_by_name_and_stays(tmp_path):
    home = tmp_path / "tune"
    TrialRecord(0, {"train.optim.lr": 0.5}).write(home)
    Versions("9.9", {"status": 1, "sweep": 2}).write(home)
    space = {
        "task": "distill",
        "parameters": {"train.optim.lr": [0.5, 0.25]},
        "objectives": [{"metric": "fidelity", "mode": "max"}],
        "budget": {"trials": 2},
    }
    before = {str(path): path.read_bytes() for path in home.rglob("*") if path.is_file()}
    with pytest.raises(NewerRecord, match=r"record sweep \(plan.json, .* has schema 2, written by radioplat 9\.9"):
        tune(SPEC, [f"results_dir={tmp_path}", "train.num_gpus=1"], space=space)
    assert {str(path): path.read_bytes() for path in home.rglob("*") if path.is_file()} == before
