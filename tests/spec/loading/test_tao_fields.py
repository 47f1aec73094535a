"""TAO's radio and classification specs: whole ones, and what is refused; test_tao_leaves.py has each field."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from radioplat.errors import SpecError
from radioplat.spec.loading.load import load_spec

TABLE = json.loads((Path(__file__).parent / "tao_leaves" / "radio.json").read_text())  # TAO 7.0.1's fields
LEAVES = {path: default for path, (default, _) in TABLE.items()}
GIVEN = {  # TAO's form of a teacher, and what JSON cannot hold or TAO requires
    "distill.teacher": {"backbone": {"type": "resnet_34"}},
    "dataset.augmentation.multi_scales": [{224: 0.1}, {256: 0.2}, {288: 0.3}, {320: 0.4}],
    "gen_trt_engine.tensorrt.calibration.cal_image_dir": ["images"],
}


def tree_of(leaves: dict) -> dict:
    tree: dict = {}
    for path, value in leaves.items():
        *sections, name = path.split(".")
        inner = tree
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[name] = value
    return tree


def test_all_fields_together():
    given = {path: GIVEN.get(path, "x" if value == "???" else value) for path, value in LEAVES.items()}
    spec = load_spec({"compat": "tao", **tree_of({**given, "distill.pretrained_teacher_model_path": "a.pth"})})
    (teacher,) = spec.distill.teacher
    assert teacher.model.backbone.type == "resnet_34" and teacher.pretrained_teacher_model_path == "a.pth"
    assert spec.results_dir == "results" and spec.wandb.entity is None and spec.evaluate.batch_size is None
    assert spec.inference.checkpoint == "x" and spec.inference.batch_size is None
    assert spec.train.optim.policy_params == {} and spec.dataset.val_dataset.images_dir is None
    assert {"model_name", "dataset.root_dir", "inference.num_gpus", "export.on_cpu"} <= spec.without_effect.keys()
    assert all(spec.without_effect.values())


def test_a_spec_of_classification_pyt():
    """The fields of its shipped distill.yaml that radio's specs lack."""
    head = {"custom_args": None, "loss": {"type": "CrossEntropyLoss", "label_smooth_val": 0.0}, "topk": [1, 5]}
    teacher = {"backbone": {"type": "resnet_34", "freeze_backbone": True}}
    spec = load_spec(
        {
            "compat": "tao",
            "model": {"backbone": {"type": "resnet_18"}, "head": head},
            "dataset": {"dataset": "CLDataset", "shuffle": True, "train_nolabel": {"folder_path": "x"}},
            "distill": {"loss_type": "balanced", "teacher": teacher, "pretrained_teacher_model_path": "a.pth"},
        }
    )
    distill = spec.distill
    assert distill.loss_scale == 100 and not distill.target_norm.both_sides and distill.teacher[0].model.backbone.type
    assert distill.target_norm.type.value == "tao_phi_s" and "model.head.topk" in spec.without_effect


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("dataset.augmentation.use_continuous_rotation", True),
        ("dataset.augmentation.perspective_distortion", {"scale": 0.5}),
        ("dataset.augmentation.mixup_cutmix", True),
        ("model.head.type", "TAOMLPHead"),
        ("model.head.loss.label_smooth_val", 0.1),
    ],
)
def test_a_field_that_would_change_the_result_is_refused(path, value):
    with pytest.raises(SpecError, match="not available here") as caught:
        load_spec(tree_of({path: value}))
    assert [problem.where for problem in caught.value.problems] == [path]


def test_a_field_of_a_later_tao_is_unknown():
    with pytest.raises(SpecError, match="unknown field"):
        load_spec({"train": {"later_field": 1}})


def test_a_value_that_has_no_place_is_refused():
    """Weights of one teacher among two, and of a teacher that has others; a folder that is given twice."""
    two = {"teacher": [{}, {}], "pretrained_teacher_model_path": "a.pth"}
    other = {"teacher": {"pretrained_teacher_model_path": "b.pth"}, "pretrained_teacher_model_path": "a.pth"}
    for distill in (two, other):
        with pytest.raises(SpecError, match="distill.pretrained_teacher_model_path"):
            load_spec({"distill": distill})
    with pytest.raises(SpecError, match="train.results_dir"):
        load_spec({"train": {"results_dir": "a"}, "distill": {"results_dir": "b"}})
    same = load_spec({"train": {"results_dir": "a"}, "distill": {"results_dir": "a"}})
    assert same.distill.results_dir == "a"


def test_parameters_of_the_policy_itself_are_kept():
    params = {"step_size": 30, "gamma": 0.1, "milestones": [10, 20]}
    found = load_spec({"train": {"optim": {"policy": "multistep", "policy_params": params}}}).train.optim
    assert found.policy_params == {"gamma": 0.1, "milestones": [10, 20]}
    cosine = {"policy": "cosine", "policy_params": {**params, "min_lr": 1e-6}}
    assert load_spec({"train": {"optim": cosine}}).train.optim.policy_params == {"min_lr": 1e-6}
