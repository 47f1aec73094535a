"""Every rule of schemes, ensembles and MESA by an example that breaks it, and only it."""

from __future__ import annotations

from pathlib import Path

import pytest

from radioplat.spec.checks.tasks.training_run import check
from radioplat.spec.loading.load import load_spec

EXAMPLE = Path(__file__).parents[4] / "specs" / "radio_two_teachers.yaml"
T, S = "distill.teacher[0]", "distill.teacher[1]"
SELF, ONLINE, EMA = "distill.scheme=self", "distill.scheme=online", "train.enable_ema=true"
MEAN = "distill.teacher=[{source: ema, mode: combo, loss_type: CS, summary_loss_type: cosine}]"
DEEP = ["distill.scheme=self", "distill.teacher=[{name: deep, source: deeper}]"]
BIND = "distill.bindings=[{teacher_module_name: blocks.1, student_module_name: blocks.0, criterion: MSE}]"


def peer(more: str = "mode: logits, loss_type: KL") -> list[str]:
    backbone = "model: {backbone: {type: test_vit, output_dim: [3]}}"
    return [ONLINE, f"distill.teacher=[{{name: p, source: peer, {backbone}, {more}}}]", "distill.alpha=0.5"]


def ensemble(*paths: str, more: str = "") -> str:
    return f"distill.teacher=[{{loss_type: CS, ensemble: [{', '.join(paths)}]{more}}}]"


@pytest.mark.parametrize(
    ("overrides", "where"),
    [
        (["distill.scheme=reverse"], None),
        ([SELF], "distill.scheme"),
        ([ONLINE], "distill.scheme"),
        ([SELF, EMA, MEAN], None),
        ([EMA, MEAN], f"{T}.source"),
        ([ONLINE, EMA, MEAN], ["distill.scheme", f"{T}.source"]),
        ([SELF, MEAN], "train.enable_ema"),
        ([SELF, EMA, MEAN, "model.backbone.freeze_backbone=true"], "model.backbone.freeze_backbone"),
        ([SELF, EMA, MEAN, f"{T}.view=shifted"], None),
        ([SELF, EMA, MEAN, f"{T}.input_size=64"], f"{T}.input_size"),
        ([SELF, EMA, MEAN, f"{T}.norm_mean=[0.5, 0.5, 0.5]"], f"{T}.norm_mean"),
        ([SELF, EMA, MEAN, f"{T}.model.backbone.type=test_vit"], f"{T}.model"),
        ([SELF, EMA, MEAN, f"{T}.pretrained_teacher_model_path=/a.pth"], f"{T}.pretrained_teacher_model_path"),
        ([SELF, EMA, MEAN, f"{T}.spatial_norm_type=phi"], f"{T}.spatial_norm_type"),
        ([SELF, EMA, MEAN, "teachers.ema.num_cpus=1"], "teachers.ema"),
        ([SELF, EMA, MEAN, f"{T}.mode=logits", f"{T}.loss_type=KL"], f"{T}.loss_type"),
        ([f"{T}.view=shifted"], f"{T}.view"),
        ([*DEEP, BIND], None),
        (DEEP, f"{T}.source"),
        ([*DEEP, BIND, f"{T}.mode=spatial"], f"{T}.mode"),
        ([*DEEP, BIND, f"{T}.loss_lambda=2"], f"{T}.loss_lambda"),
        ([*DEEP, BIND.replace("blocks.1", "blocks.0")], "distill.bindings[0].teacher_module_name"),
        ([*DEEP, BIND, "train.grad_checkpointing=true"], "train.grad_checkpointing"),
        (peer(), None),
        (peer("mode: logits, loss_type: KL, pretrained_teacher_model_path: /a.pth"), None),
        (peer()[1:], f"{T}.source"),
        ([*peer()[:2]], "distill.alpha"),
        ([*peer("mode: spatial, loss_type: MSE")[:2]], f"{T}.mode"),
        (peer("mode: logits, loss_type: KL, extra_losses: [{type: MSE, kind: spatial}]"), None),
        (
            peer("mode: logits, loss_type: KL, extra_losses: [{type: angle, kind: summary}]"),
            f"{T}.extra_losses[0].type",
        ),
        ([*peer(), "teachers.p.placement=inline"], "teachers.p"),
        ([*peer(), "distill.stages=[{steps: 3}, {steps: 3, teachers: [p]}]"], None),
        (peer("mode: logits, loss_type: KL, ensemble: [/a.pth, /b.pth]"), f"{T}.ensemble"),
        ([ensemble("/a.pth", "/b.pth")], None),
        ([ensemble("/a.pth", "/a.pth")], None),
        ([ensemble("/a.pth")], f"{T}.ensemble"),
        ([ensemble("/a.pth", "/b.pth", more=", pretrained_teacher_model_path: /c.pth")], f"{T}.ensemble"),
        ([SELF, EMA, MEAN, "distill.target_norm.type=phi_s"], "distill.target_norm.type"),
        (["distill.mesa.weight=0.1", EMA], None),
        (["distill.mesa.weight=0.1"], "train.enable_ema"),
        (["distill.mesa.start_step=10"], "distill.mesa.weight"),
        (["distill.mesa.view=same"], "distill.mesa.weight"),
    ],
)
def test_rule(overrides, where):
    spec = load_spec(EXAMPLE, ["teachers={}", *overrides])
    spec.feature_cache.dir = None
    expected = [] if where is None else [where] if isinstance(where, str) else where
    assert sorted(problem.where for problem in check(spec)) == sorted(expected)


def test_a_peer_stays_all_along():
    more = [f"{T}.name=a", "distill.stages=[{steps: 3, teachers: [a]}, {steps: 3}]"]
    spec = load_spec(EXAMPLE, ["teachers={}", ONLINE, *more, f"{S}.source=peer"])
    spec.distill.teacher[1].name = "b"
    found = {problem.where: problem.message for problem in check(spec)}
    assert "the peer b trains in every step" in found["distill.stages[0].teachers"]
