"""A student that begins with a teacher's own weights: `plan` and the run warn of what would make it forget them."""

from __future__ import annotations

import radioplat
from radioplat.spec.loading.load import load_spec
from radioplat.tasks.plan.plan import plan
from radioplat.tracking.status import read_status

CURES = [
    "train.optim.head_warmup_epochs=1",
    "model.backbone.student_norm_mean=[0.5,0.5,0.5]",
    "model.backbone.student_norm_std=[0.5,0.5,0.5]",
]


def test_plan_and_the_run_warn_alike_and_not_once_it_is_cured(make_spec, weights, tmp_path):
    student = {"type": "tf_efficientnet_lite0", "pretrained_backbone_path": str(weights["lite0"])}
    spec = make_spec(tmp_path, {"train": {"max_steps": 1}})
    spec["model"] = {"backbone": student}
    fields = [cure.partition("=")[0] for cure in CURES]
    planned = [line for line in plan(load_spec(spec)).warnings if any(field in line for field in fields)]
    assert len(planned) == 2 and all(field in " ".join(planned) for field in fields)
    heard: list[str] = []
    run = radioplat.distill(spec, say=heard.append)
    assert [line for line in heard if line in planned] == planned
    logged = {line["message"]: line["verbosity"] for line in read_status(run.folder / "status.json")}
    assert [logged[line] for line in planned] == ["WARNING"] * 2
    # A run that goes on is not warned of what is behind it.
    again: list[str] = []
    radioplat.distill(spec, ["train.max_steps=2"], say=again.append)
    assert any("goes on from" in line for line in again) and not set(planned) & set(again)
    assert not any(field in line for line in plan(load_spec(spec, CURES)).warnings for field in fields)
