"""Facts and problems of the transforms of targets."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from radioplat.design.models import design_models
from radioplat.launch.preflight.preflight import Preflight
from radioplat.launch.preflight.readiness import target_statistics
from radioplat.launch.preflight.teaching import compat, left_out_heads, losses, targets
from radioplat.spec.loading.load import load_spec
from radioplat.spec.resolved.teacher import resolve_teachers


def planned(width: int, **target_norm) -> Preflight:
    teacher = {"name": "t", "mode": "spatial", "loss_type": "MSE", "model": {"backbone": {"type": "test_vit"}}}
    spec = load_spec({"distill": {"target_norm": target_norm, "teacher": [teacher]}})
    infos = {"t": SimpleNamespace(summary_dim=3, spatial_dim=width)}
    models = SimpleNamespace(infos=infos, teachers=resolve_teachers(spec))
    preflight = Preflight(spec, "distill", Path("nowhere"), models=models)
    for step in (targets, target_statistics):
        preflight.take(step)
    return preflight


@pytest.mark.parametrize(
    ("width", "fields", "fact"),
    [
        (768, {"type": "phi_s"}, "phi_s, measured over 100 global batches before the first step"),
        (5, {"type": "zca", "fit": "running"}, "zca, measured anew every 100 steps until step 3000"),
        (5, {"type": "none"}, None),
    ],
)
def test_how_targets_are_transformed(width, fields, fact):
    found = planned(width, **fields)
    assert found.facts.get("targets") == fact and not found.warnings and not found.problems


def told(tree: dict) -> Preflight:
    spec = load_spec(tree)
    preflight = Preflight(spec, "distill", Path("nowhere"), models=SimpleNamespace(teachers=resolve_teachers(spec)))
    for step in (compat, losses):
        preflight.take(step)
    return preflight


def test_a_size_of_a_teacher_is_not_taos():
    teacher = {"model": {"backbone": {"type": "test_vit"}}, "name": "t", "input_size": 432}
    (warning,) = told({"compat": "tao", "distill": {"teacher": [teacher]}}).warnings
    assert "distill.teacher[0] gets images of its input_size, 432 pixels" in warning
    chosen = teacher | {"match_student_resolution": False}
    assert not told({"compat": "tao", "distill": {"teacher": [chosen]}}).warnings
    assert not told({"distill": {"teacher": [teacher]}}).warnings


def test_which_losses_compare_what():
    backbone = {"model": {"backbone": {"type": "test_vit"}}}
    one = {**backbone, "name": "one", "mode": "combo", "summary_loss_weight": 2.0, "summary_loss_type": "cosine"}
    other = {**backbone, "name": "other", "mode": "summary", "loss_type": "FD", "loss_lambda": 0.25}
    found = told({"compat": "tao", "distill": {"loss_type": "MSE", "teacher": [one, other]}})
    assert found.facts["losses"] == (
        "one: summary by CS times 2, spatial by MSE after tao_phi_s of both sides; all times 0.5; "
        "other: summary by FD after layer_norm of its targets; all times 0.25; divided by 2 teachers"
    )
    assert not found.warnings


def test_a_spec_that_looks_like_taos_is_proposed_its_objective():
    teacher = {"model": {"backbone": {"type": "test_vit"}}}
    (warning,) = told({"encryption_key": "k", "distill": {"loss_type": "MSE", "teacher": [teacher]}}).warnings
    assert (
        "(encryption_key)" in warning and "distill.target_norm.type=tao_phi_s" in warning and "loss_type" not in warning
    )
    assert not told({"distill": {"teacher": [teacher]}}).warnings


def test_a_width_without_a_hadamard_matrix_is_told():
    assert "no Hadamard matrix of order 770 can be made for the spatial of t" in planned(770, type="phi_s").warnings[0]


def test_a_file_of_something_else_is_a_problem(tmp_path):
    (tmp_path / "x").write_text("no statistics")
    (problem,) = planned(768, type="phi_s", path=str(tmp_path / "x")).problems
    assert problem.where == "distill.target_norm.path"


def test_heads_that_the_format_of_a_chained_export_lacks_are_told():
    backbone = {"model": {"backbone": {"type": "test_resnet"}}, "pretrained_teacher_model_path": "t.pth"}
    attn = {**backbone, "name": "a", "mode": "spatial", "loss_type": "MSE", "spatial_mlp_version": "attn"}
    deeper = attn | {"name": "b", "spatial_num_inner": 1}
    tree = {
        "model": {"backbone": {"type": "radio_vit_tiny_patch16"}},
        "dataset": {"img_size": 64},
        "distill": {"use_mlp": True, "then": ["export"], "teacher": [attn, deeper]},
    }

    def warnings(**export) -> list[str]:
        spec = load_spec(tree | {"export": export})
        preflight = Preflight(spec, "distill", Path("nowhere"), models=design_models(spec, "distill"))
        preflight.take(left_out_heads)
        assert not preflight.problems
        return preflight.warnings

    (warning,) = warnings(format="radio")
    assert "export.format=radio: head 'b'" in warning and "no inner blocks" in warning and "left out" in warning
    assert warnings(format="radio", adaptors=["a"]) == warnings(format="hf") == warnings() == []


def test_a_detectors_spec_is_proposed_taos_bindings():
    flat = {"backbone": "resnet_50", "act": "silu", "num_select": 100}
    tree = {"model_name": "rtdetr", "model": flat, "distill": {"teacher": flat}}
    (warning,) = told(tree).warnings
    assert "distill.binding_form=tao" in warning and "model.num_select" in warning
    assert not told({"compat": "tao", **tree}).warnings
