"""``compat: tao``: what it sets, what it leaves, and what a spec without it is told."""

from __future__ import annotations

import pytest

from radioplat.spec.checks.tasks.training_run import check
from radioplat.spec.loading.load import changed_fields, load_spec, to_yaml
from radioplat.spec.loading.tao_objective import tao_differences, tao_signs
from radioplat.spec.resolved.teacher import resolve_teachers
from radioplat.spec.schema.distill import BindingForm, LossType, Mode, SpatialLoss, TargetNormFit, TargetNormType
from radioplat.spec.schema.root import Compat

TEACHER = {"model": {"backbone": {"type": "resnet18"}}, "pretrained_teacher_model_path": "a.pth"}


def spec_of(*overrides: str, teacher: dict | None = None, **distill):
    return load_spec(
        {
            "compat": "tao",
            "model": {"backbone": {"type": "resnet18"}},
            "dataset": {"train_dataset": {"images_dir": "images"}},
            "distill": {"teacher": [{**TEACHER, **(teacher or {})}], **distill},
        },
        overrides,
    )


@pytest.mark.parametrize(
    ("loss", "mode", "summary", "spatial"),
    [
        ("balanced", "spatial", "none", "tao_phi_s"),
        ("FD", "summary", "layer_norm", "none"),
        ("kl", "logits", "none", "none"),
    ],
)
def test_each_loss_has_taos_transforms(loss, mode, summary, spatial):
    (teacher,) = resolve_teachers(spec_of(loss_type=loss))
    assert teacher.mode.value == mode
    wanted = {kind: norm.value for kind, norm in teacher.norms.items()}
    assert wanted.get("summary", "none") == summary and wanted.get("spatial", "none") == spatial
    assert teacher.raw_kinds == (("spatial",) if mode == "spatial" else ())


def test_combo_compares_maps_by_mse_whatever_loss_type_says():
    (teacher,) = resolve_teachers(spec_of(loss_type="CS", mode="COMBO"))
    assert teacher.mode is Mode.combo and teacher.hidden == 1024
    assert [(term.kind, term.loss) for term in teacher.terms] == [("summary", LossType.CE), ("spatial", LossType.MSE)]
    assert teacher.norms == {"spatial": TargetNormType.tao_phi_s}


def test_a_field_of_the_spec_is_kept():
    own = spec_of(
        "train.optim.lr=0.1",
        "distill.target_norm.fit=before",
        loss_type="MSE",
        mode="combo",
        use_mlp=False,
        teacher={"spatial_loss_type": "dampened_mse"},
    )
    assert own.train.optim.lr == 0.1 and own.distill.use_mlp is False
    assert own.distill.target_norm.fit is TargetNormFit.before
    assert own.distill.teacher[0].spatial_loss_type is SpatialLoss.dampened_mse
    assert own.distill.target_norm.type is TargetNormType.tao_phi_s


def test_what_a_run_writes_is_read_as_it_was(tmp_path):
    spec = spec_of(loss_type="balanced")
    (tmp_path / "experiment.yaml").write_text(to_yaml(spec))
    assert load_spec(tmp_path / "experiment.yaml") == spec and spec.compat is Compat.tao
    assert not check(spec) and not check(spec_of(loss_type="KL", teacher={"name": "logits"}))


def test_a_spec_with_taos_fields_is_told_what_the_line_would_set():
    spec = load_spec({"model_name": "radio", "train": {"gpu_ids": [0]}, "distill": {"teacher": [TEACHER]}})
    changed = changed_fields(spec)
    assert tao_signs(changed) == ["model_name", "train.gpu_ids"]
    added = tao_differences(changed)
    assert "distill.mean_over_teachers=true" in added and "distill.loss_type=KL" in added
    assert not tao_signs(changed_fields(load_spec({"distill": {"teacher": [TEACHER]}})))
    assert "distill.loss_type" not in " ".join(tao_differences({"distill": {"loss_type": "MSE"}}))


def test_words_of_an_enumeration_are_taken_in_any_case():
    spec = load_spec({"train": {"precision": "BF16"}, "distill": {"teacher": [{**TEACHER, "loss_type": "Balanced"}]}})
    assert spec.train.precision.value == "bf16" and spec.distill.teacher[0].loss_type is LossType.BALANCED
    own = load_spec({"distill": {"loss_type": "my_module:Loss"}})
    assert own.distill.loss_type.value == "my_module:Loss"


@pytest.mark.parametrize(("kind", "lr", "steps"), [("dino", 2e-4, [11]), ("rtdetr", 1e-4, [1000])])
def test_detectors_train_by_the_defaults_of_their_trainer(kind, lr, steps):
    flat = {"model_name": kind, "model": {"backbone": "resnet_50"}, "distill": {"teacher": {"backbone": "resnet_50"}}}
    train, distill = (getattr(load_spec({"compat": "tao", **flat}), name) for name in ("train", "distill"))
    assert (train.optim.lr, train.optim.lr_mults, train.optim.weight_decay) == (lr, {"backbone.": 0.1}, 1e-4)
    assert train.optim.policy.value == "multistep" and train.clip_grad_norm == 0.1
    assert train.optim.policy_params == {"milestones": steps, "gamma": 0.1}
    assert distill.binding_form is BindingForm.tao and distill.loss_type is None
    own = load_spec({"compat": "tao", **flat, "train": {"optim": {"lr": 0.5, "policy": "cosine"}}}).train.optim
    assert (own.lr, own.lr_mults, own.policy.value, own.policy_params) == (0.5, {"backbone.": lr / 5}, "cosine", {})


def test_weights_of_bindings_count_as_in_taos_code():
    """DINO's criterion has the weight, and its result is multiplied by it; RT-DETR's IOU has it once."""
    binding = {"teacher_module_name": "srcs", "student_module_name": "srcs", "criterion": "IOU", "weight": 3.0}
    other = {"teacher_module_name": "memory.0", "student_module_name": "memory.0", "criterion": "L2", "weight": 3.0}
    model = {"backbone": "resnet_50"}
    for kind, compat, wanted in (("rtdetr", "tao", {3.0, 9.0}), ("rtdetr", "radioplat", {3.0}), ("dino", "tao", {9.0})):
        bindings = [other] if kind == "dino" else [binding, other]
        distill = {"teacher": model, "bindings": bindings}
        spec = load_spec({"compat": compat, "model_name": kind, "model": model, "distill": distill})
        assert {bound.weight for bound in spec.distill.bindings} == wanted


def test_windows_need_sizes():
    """As in TAO's vitdet.py, whose default of window_sizes is empty."""
    spec = load_spec({"compat": "tao", "distill": {"vitdet": {"prob": 0.5}}})
    assert spec.distill.vitdet.prob == 0 and "window_sizes" in spec.without_effect["distill.vitdet.prob"]
    sizes = {"prob": 0.5, "window_sizes": [7]}
    assert load_spec({"compat": "tao", "distill": {"vitdet": sizes}}).distill.vitdet.prob == 0.5
    assert load_spec({"distill": {"vitdet": {"prob": 0.5}}}).distill.vitdet.prob == 0.5
