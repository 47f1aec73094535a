"""What the function ``tune`` writes, for a sweep whose trials have all run."""

from __future__ import annotations

import radioplat
from radioplat.quickstart.defaults import RADIO_VIT as SPEC
from radioplat.spec.loading.load import load_spec
from radioplat.tasks.tune.show import show
from radioplat.tasks.tune.sweep import make_plan
from radioplat.tasks.tune.trial_record import State, TrialRecord

SPACE = {
    "task": "distill",
    "parameters": {"train.optim.lr": [0.5, 0.25]},
    "objectives": [{"metric": "fidelity", "mode": "max"}],
    "budget": {"trials": 2},
}


def test_the_function_writes_page_picture_and_best_spec(tmp_path, capsys):
    overrides = [f"results_dir={tmp_path}", "train.num_gpus=1"]
    plan = make_plan(SPEC, overrides, SPACE)
    plan.home.mkdir(parents=True)
    plan.write()
    for number, (lr, fidelity) in enumerate(((0.5, 0.6), (0.25, 0.8))):
        TrialRecord(number, {"train.optim.lr": lr}, State.done, {"fidelity": fidelity}, student="s").write(plan.home)
    report = radioplat.tune(SPEC, overrides, space=SPACE)
    assert report.best == report.done[1] and load_spec(plan.home / "best.yaml").train.optim.lr == 0.25
    assert "trial_0001" in (plan.home / "report.html").read_text()
    assert (plan.home / "pareto.png").read_bytes().startswith(b"\x89PNG")
    capsys.readouterr()
    show(report)
    assert f"in full: radioplat distill -e {plan.home / 'best.yaml'}\n" in capsys.readouterr().out
